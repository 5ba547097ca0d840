-- notice: keep a provider's notice about its own subscription until it has been acted on.
-- Crash prevented: the provider is answered 2xx and does not send the notice again; one kept in memory would die with us.
-- ARGV: field, now, cap
local key = P .. 'notices'
if redis.call('HEXISTS', key, ARGV[1]) == 0 and redis.call('HLEN', key) >= tonumber(ARGV[3]) then return 0 end
redis.call('HSET', key, ARGV[1], ARGV[2])
redis.call('EXPIRE', key, SETTLED_S)
return 1
