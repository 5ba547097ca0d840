-- release: give a batch back unsent, due now or later (parked, suspended, asked about), with its age clock moved by the
-- time that it was held.
-- Crash prevented: moving the clock and giving back the lease in two steps could count a hold twice or not at all.
-- ARGV: lane, id, token, due ('' is now by the server's clock), held ms, status, reason
local lane, id, token, due = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
-- Answered since it was looked at: no waiting for the time at which it would be looked at again.
if ARGV[6] == 'asked' and redis.call('HEXISTS', dispatch_key(id), 'ask_answer') == 1 then due = '' end
if due == '' then
  local time = redis.call('TIME')
  due = string.format('%d', time[1] * 1000)
end
if not give_back(lane, id, token, due) then return 0 end
redis.call('HSET', dispatch_key(id), 'status', ARGV[6], 'reason', ARGV[7])
if tonumber(ARGV[5]) > 0 and redis.call('HEXISTS', dispatch_key(id), 'first_attempt') == 1 then
  redis.call('HINCRBY', dispatch_key(id), 'first_attempt', ARGV[5])
end
return 1
