-- retry: the outcome was a passing failure or is unknown; the same batch gets another turn at `due`.
-- Crash prevented: giving the lease back without a due time (or the reverse) would send at once, or wait for the expiry.
-- ARGV: lane, id, token, due, reason
local lane, id, token = ARGV[1], ARGV[2], ARGV[3]
if not give_back(lane, id, token, ARGV[4]) then return 0 end
redis.call('HSET', dispatch_key(id), 'status', 'queued', 'reason', ARGV[5])
return 1
