-- done: the batch was taken; it leaves its lane, which gets its next turn after all that are due now.
-- Crash prevented: removing the batch and scheduling the lane in two steps could leave waiting events that no turn ever
-- comes to. Needs no lease: that it was taken is true whoever holds the lane by now.
-- ARGV: lane, id, token, now, status
local lane, id, token, now, status = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if not leave(lane, id, token, now) then return 0 end
redis.call('HSET', dispatch_key(id), 'status', status, 'settled', now)
redis.call('HDEL', dispatch_key(id), 'reason')
redis.call('ZREM', P .. 'asks', id)
forget_events(dispatch_key(id))
return 1
