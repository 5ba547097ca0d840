-- seal: lease the lanes that are due and give back each one's sealed batch, sealing one where none is open.
-- Crash prevented: a dispatcher that dies after taking a batch. The batch is stored before it is given out and never
-- changes, so the next holder (after the lease) sends the same members under the same dispatch id; the lease keeps two
-- living dispatchers from sending it at once.
-- ARGV: now, lease ms, limit, most events, most bytes, lease token, candidate dispatch ids
local now, lease_ms, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local most, bytes, token, ids = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6], cjson.decode(ARGV[7])
local READ = 200                 -- entries looked at for one batch: more than `most`, since equal events merge

-- Where this dispatch came from, for the record of each delivery, while that record exists; it ends with the records.
local function link(id, deliveries)
  local left = redis.call('TTL', P .. 'rec:admitted')
  for _, delivery in ipairs(deliveries) do
    if redis.call('HEXISTS', P .. 'rec:admitted', delivery) == 1 then
      local before = redis.call('HGET', P .. 'rec:dispatches', delivery)
      redis.call('HSET', P .. 'rec:dispatches', delivery, before and (before .. ' ' .. id) or id)
    end
  end
  if left > 0 then redis.call('EXPIRE', P .. 'rec:dispatches', left) end
end

local function fill(entries)
  local events, deliveries, seen, from, size, used, oldest = {}, {}, {}, {}, 0, 0, nil
  for _, entry in ipairs(entries) do
    local at, delivery, event = entry:match('^(%d+)\n([^\n]*)\n(.*)$')
    if not seen[event] then
      if #events > 0 and (#events == most or size + #event + 1 > bytes) then break end
      seen[event] = true
      events[#events + 1] = event
      size = size + #event + 1
    end
    if not from[delivery] then
      from[delivery] = true
      deliveries[#deliveries + 1] = delivery
    end
    oldest = oldest or at
    used = used + 1
  end
  return events, deliveries, used, oldest
end

local function seal(lane)
  local entries = redis.call('LRANGE', P .. 'lane:' .. lane, 0, READ - 1)
  if #entries == 0 then return nil end
  local id = table.remove(ids)
  local events, deliveries, used, oldest = fill(entries)
  redis.call('LTRIM', P .. 'lane:' .. lane, used, -1)
  redis.call('HSET', dispatch_key(id), 'lane', lane, 'status', 'queued', 'attempts', 0, 'sealed', ARGV[1], 'oldest', oldest, 'count', #events,
    'events', table.concat(events, '\n'), 'deliveries', table.concat(deliveries, '\n'))
  redis.call('RPUSH', P .. 'sealed:' .. lane, id)
  link(id, deliveries)
  return id
end

-- The open batch of a lane. One whose hash is gone (an evicting or edited store) cannot be sent: it is reported as lost.
local function head(lane, lost)
  while true do
    local id = redis.call('LINDEX', P .. 'sealed:' .. lane, 0) or seal(lane)
    if not id or redis.call('HEXISTS', dispatch_key(id), 'events') == 1 then return id end
    redis.call('LPOP', P .. 'sealed:' .. lane)
    lost[#lost + 1] = id
  end
end

-- Leased lanes are due only to a clock ahead of their holder's; they are passed over as they are, so that no clock moves
-- another's turn, and looked past, so that they hide no due one.
local LOOK = 1000
local batches, lost = {}, {}
insist()
for _, lane in ipairs(redis.call('ZRANGEBYSCORE', P .. 'ready', '-inf', now, 'LIMIT', 0, limit + LOOK)) do
  if #batches == limit then break end
  if redis.call('EXISTS', P .. 'lease:' .. lane) == 0 then
    local id = head(lane, lost)
    if id then
      redis.call('SET', P .. 'lease:' .. lane, token, 'PX', lease_ms)
      redis.call('ZADD', P .. 'ready', now + lease_ms, lane)
      local row = redis.call('HMGET', dispatch_key(id), 'events', 'deliveries', 'attempts', 'first_attempt', 'reason')
      batches[#batches + 1] = {lane, id, row[1], row[2], row[3], row[4] or '', row[5] or ''}
    else
      redis.call('ZREM', P .. 'ready', lane)
    end
  end
end
return {batches, lost}
