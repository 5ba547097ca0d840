-- point: name the source of a dispatch, also on a server that is full. KEYS[1] is the pointer's own key.
-- Crash prevented: none; written again by the next lease.
-- ARGV: source, ttl
insist()
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
return 1
