-- renew: keep a lease while its batch waits for its turn to be sent.
-- Crash prevented: renewing after the lease went to another dispatcher, which would leave the lane with two holders.
-- ARGV: lane, token, now, lease ms
if not holds(ARGV[1], ARGV[2]) then return 0 end
redis.call('PEXPIRE', P .. 'lease:' .. ARGV[1], ARGV[4])
redis.call('ZADD', P .. 'ready', tonumber(ARGV[3]) + tonumber(ARGV[4]), ARGV[1])
return 1
