-- dead: the batch leaves its lane for the dead letters, whole, with its reason.
-- Crash prevented: between leaving the lane and arriving at the dead letters the batch would be nowhere.
-- ARGV: lane, id, token, now, reason, cap
local lane, id, token, now, reason = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local dead, key = P .. 'dead', dispatch_key(ARGV[2])
if not holds(lane, token) or not leave(lane, id, token, now) then return 0 end
redis.call('HSET', key, 'status', 'dead', 'reason', reason, 'settled', now)
redis.call('EXPIRE', key, DEAD_S + SETTLED_S)     -- the index below ends first
redis.call('ZREM', P .. 'asks', id)
redis.call('ZADD', dead, now, id)
redis.call('EXPIRE', dead, DEAD_S)
local gone = redis.call('ZRANGEBYSCORE', dead, '-inf', tonumber(now) - DEAD_S * 1000, 'LIMIT', 0, 100)
if #gone == 0 and redis.call('ZCARD', dead) > tonumber(ARGV[6]) then gone = redis.call('ZRANGE', dead, 0, 0) end
for _, old in ipairs(gone) do
  redis.call('ZREM', dead, old)
  forget_events(dispatch_key(old))
end
return 1
