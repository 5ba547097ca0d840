-- ask: write the question about a sealed dispatch down, or return the one that stands.
-- Crash prevented: a process that asks, dies and is replaced would ask anew, and the question's end would move on for ever.
-- ARGV: id, now, ttl ms
local key = dispatch_key(ARGV[1])
insist()
if redis.call('HSETNX', key, 'ask_asked', ARGV[2]) == 1 then
  redis.call('HSET', key, 'ask_expires', string.format('%d', tonumber(ARGV[2]) + tonumber(ARGV[3])))
  redis.call('ZADD', P .. 'asks', tonumber(ARGV[2]) + tonumber(ARGV[3]), ARGV[1])
end
local row = redis.call('HMGET', key, 'ask_asked', 'ask_expires', 'ask_answer', 'ask_by')
return {row[1], row[2], row[3] or '', row[4] or ''}
