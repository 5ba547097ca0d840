-- flow: add to the counts of one source's time buckets, note when each kind was last seen, forget old buckets.
-- Crash prevented: a bucket that is added without the forgetting of old ones would let the hash grow by every restart.
-- ARGV: bucket number, oldest bucket to keep, ttl, then triples of name, count, time of the last (ms)
local key, oldest = P .. 'flow', tonumber(ARGV[2])
for i = 4, #ARGV, 3 do
  redis.call('HINCRBY', key, ARGV[1] .. ' ' .. ARGV[i], ARGV[i + 1])
  local last = tonumber(redis.call('HGET', key, 'last ' .. ARGV[i]) or '0')
  if tonumber(ARGV[i + 2]) > last then redis.call('HSET', key, 'last ' .. ARGV[i], ARGV[i + 2]) end
end
local swept = tonumber(redis.call('HGET', key, 'swept') or '0')
if swept < oldest then
  for _, field in ipairs(redis.call('HKEYS', key)) do
    local bucket = tonumber(field:match('^(%d+) '))
    if bucket and bucket < oldest then redis.call('HDEL', key, field) end
  end
  redis.call('HSET', key, 'swept', oldest)
end
redis.call('EXPIRE', key, ARGV[3])
return 1
