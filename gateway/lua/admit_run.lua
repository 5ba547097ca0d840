-- admit_run: claim a dispatch for one workflow run.
-- Crash prevented: two runs of one dispatch that read "free" at once would both be admitted. A repeat of the run that has
-- it (its answer was lost) is admitted again.
-- ARGV: id, digest, run id, now, window ms, "1" to claim ("": only look)
local key = dispatch_key(ARGV[1])
local row = redis.call('HMGET', key, 'lane', 'status', 'last_sent', 'run', 'reason', 'carried')
local lane, status, sent, run = row[1], row[2], row[3], row[4]
if not lane or not sent or lane:match('^(.*):[^:]*$') ~= ARGV[2] then return 'unknown' end
if status == 'asked' or (status == 'dead' and (row[5] == 'denied' or row[5] == 'ask-expired')) then return 'unknown' end
if row[6] then return 'unknown' end     -- its events went on under another dispatch
if tonumber(ARGV[4]) > tonumber(sent) + tonumber(ARGV[5]) then return 'expired' end
if run and run ~= ARGV[3] then return 'taken' end
if ARGV[6] == '1' and not run then insist() redis.call('HSET', key, 'run', ARGV[3], 'admitted', ARGV[4]) end
return 'admitted'
