-- forget_notice: drop a notice that was acted on, unless it came again meanwhile.
-- Crash prevented: none; a notice that is acted on twice renews twice.
-- ARGV: field, the time it had
if redis.call('HGET', P .. 'notices', ARGV[1]) ~= ARGV[2] then return 0 end
return redis.call('HDEL', P .. 'notices', ARGV[1])
