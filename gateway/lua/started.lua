-- started: note that the batch is about to be sent, before it is.
-- Crash prevented: death between sending and noting it. The run may ask for admission before we settle, or without us
-- ever settling: a dispatch whose first send was not written down would be unknown to it. Refused to a lost lease.
-- ARGV: lane, id, token, now, envelope digest, new lease ms (0: as it is)
local lane, id, token, now, digest, lease_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
local key = dispatch_key(id)
if not holds(lane, token) or redis.call('LINDEX', P .. 'sealed:' .. lane, 0) ~= id then return 0 end
insist()
redis.call('HSET', key, 'status', 'sending', 'last_sent', now)
redis.call('HINCRBY', key, 'attempts', 1)
redis.call('HSETNX', key, 'first_attempt', now)
redis.call('HSETNX', key, 'first_sent', now)
if digest ~= '' then redis.call('HSET', key, 'envelope_digest', digest) end
if lease_ms > 0 then
  redis.call('PEXPIRE', P .. 'lease:' .. lane, lease_ms)
  redis.call('ZADD', P .. 'ready', tonumber(now) + lease_ms, lane)
end
return 1
