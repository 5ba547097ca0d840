-- park: no process sends through this installation before `until`. KEYS[1] is the hash of all parked installations.
-- Crash prevented: of two processes that park one installation the earlier end would win, and the rate limit be hit again.
-- ARGV: installation, until, reason, now
local now, last = tonumber(ARGV[4]), tonumber(ARGV[2])
local rows = redis.call('HGETALL', KEYS[1])
for i = 1, #rows, 2 do
  local ends = tonumber(rows[i + 1]:match('^%d+'))
  if ends <= now then
    redis.call('HDEL', KEYS[1], rows[i])
  else
    if rows[i] == ARGV[1] and ends >= tonumber(ARGV[2]) then return 0 end
    last = math.max(last, ends)
  end
end
insist()
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. ARGV[3])
redis.call('PEXPIRE', KEYS[1], math.max(1, last - now))
return 1
