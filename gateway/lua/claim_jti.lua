-- claim_jti: a run's token belongs to the first dispatch and run that it was accepted for. KEYS[1] is the token's own key.
-- Crash prevented: none survives here by design: a death after this and before admit_run is repaired by the same run's
-- repeated call, which finds its own claim.
-- ARGV: owner, ttl
local owner = redis.call('GET', KEYS[1])
if owner then return owner == ARGV[1] and 1 or 0 end
insist()
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
return 1
