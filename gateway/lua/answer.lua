-- answer: an operator's one answer to the question about a dispatch; its lane is due at once.
-- Crash prevented: two operators who answer at once, or one who repeats a call whose answer was lost: the first stands.
-- ARGV: id, answer, by, now
local key, lane = dispatch_key(ARGV[1]), nil
local row = redis.call('HMGET', key, 'ask_expires', 'ask_answer', 'lane', 'status')
if not row[1] or not row[3] then return 'unknown' end
if row[2] then return 'already' end
if tonumber(row[1]) <= tonumber(ARGV[4]) or row[4] == 'dead' or row[4] == 'discarded' then return 'expired' end
insist()
redis.call('HSET', key, 'ask_answer', ARGV[2], 'ask_by', ARGV[3])
redis.call('ZREM', P .. 'asks', ARGV[1])
lane = row[3]
-- A lane under a lease is made due when that is given back: release looks at the answer.
if redis.call('EXISTS', P .. 'lease:' .. lane) == 0 and redis.call('LINDEX', P .. 'sealed:' .. lane, 0) == ARGV[1] then
  redis.call('ZADD', P .. 'ready', ARGV[4], lane)
end
return 'answered'
