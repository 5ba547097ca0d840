-- replay_dead: put dead letters back at the end of their lane's sealed batches, before everything that is unsealed.
-- Crash prevented: a letter that is both dead and queued would be sent again when it is replayed twice; one that is neither is lost.
-- The dispatch id stays, since GitHub may have taken it; attempts and age start anew.
-- ARGV: now, ids
local now, done = ARGV[1], {}
for _, id in ipairs(cjson.decode(ARGV[2])) do
  local key = dispatch_key(id)
  local lane = redis.call('HGET', key, 'lane')
  if lane and redis.call('HEXISTS', key, 'events') == 1 and redis.call('ZREM', P .. 'dead', id) == 1 then
    redis.call('PERSIST', key)
    forget_ask(id)
    local reason = redis.call('HGET', key, 'reason')
    -- a no keeps out the runs of an earlier send, until it is sent anew
    if reason == 'denied' or reason == 'ask-expired' then redis.call('HDEL', key, 'last_sent') end
    redis.call('HSET', key, 'status', 'queued', 'attempts', 0)
    redis.call('HDEL', key, 'first_attempt', 'reason', 'settled')
    redis.call('RPUSH', P .. 'sealed:' .. lane, id)
    redis.call('ZADD', P .. 'ready', 'NX', now, lane)
    done[#done + 1] = id
  end
end
return done
