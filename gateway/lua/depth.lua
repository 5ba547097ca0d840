-- depth: what waits in one source, counted in one instant, so that a batch moving from lane to sealed is counted once.
-- Crash prevented: none, it changes nothing.
local waiting, sealed, oldest = 0, 0, nil
local lanes = redis.call('ZRANGE', P .. 'ready', 0, -1)
for _, lane in ipairs(lanes) do
  waiting = waiting + redis.call('LLEN', P .. 'lane:' .. lane)
  local head = redis.call('LINDEX', P .. 'sealed:' .. lane, 0)
  local at
  if head then
    sealed = sealed + redis.call('LLEN', P .. 'sealed:' .. lane)
    at = redis.call('HGET', dispatch_key(head), 'oldest')
  else
    local entry = redis.call('LINDEX', P .. 'lane:' .. lane, 0)
    at = entry and entry:match('^%d+')
  end
  at = at and tonumber(at)
  if at and (not oldest or at < oldest) then oldest = at end
end
return {#lanes, waiting, sealed, redis.call('ZCARD', P .. 'dead'), oldest and string.format('%d', oldest) or ''}
