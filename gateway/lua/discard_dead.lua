-- discard_dead: an operator gives dead letters up.
-- Crash prevented: dropping the events but not the index would list a letter that cannot be replayed.
-- ARGV: ids
local done = {}
for _, id in ipairs(cjson.decode(ARGV[1])) do
  if redis.call('ZREM', P .. 'dead', id) == 1 then
    redis.call('HSET', dispatch_key(id), 'status', 'discarded')
    forget_events(dispatch_key(id))
    done[#done + 1] = id
  end
end
return done
