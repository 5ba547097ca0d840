-- refuse_run: keep the last refusal of a run, for operators, while no run is admitted. One write: nothing can come apart.
-- Only a dispatch of the run's own subscription is written to, and none is made or kept alive by it. Without `insist`: a
-- full server is not made fuller by what nobody waits for.
-- ARGV: id, digest, "reason run time"
local key = dispatch_key(ARGV[1])
local row = redis.call('HMGET', key, 'lane', 'last_sent', 'run')
if not row[1] or not row[2] or row[3] or row[1]:match('^(.*):[^:]*$') ~= ARGV[2] then return 0 end
redis.call('HSET', key, 'refused', ARGV[3])
return 1
