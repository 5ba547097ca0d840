-- carry: keep runs out of a dispatch whose events are about to go on under another, unless a run has it already.
-- Crash prevented: a run that is judged while a rollover looks would have the old dispatch, and another run the new one.
-- ARGV: id
local key = dispatch_key(ARGV[1])
if redis.call('HEXISTS', key, 'run') == 1 then return 0 end
if redis.call('EXISTS', key) == 0 then return 1 end -- forgotten meanwhile: nothing to keep a run out of, and no key without an end
insist()
redis.call('HSET', key, 'carried', 1)
return 1
