-- admit: dedupe and enqueue every item of every delivery of one group commit, and write their records.
-- Crash prevented: between "the id is consumed" and "the event is queued" the process or the server may die; done in two
-- steps, the provider's retry would be a duplicate of something that was never queued. A delivery that asks again (its
-- first answer was lost) finds its own id and is told success; nothing is queued twice.
-- ARGV: payload, now, record cap, record age (times in microseconds, as records have them)
local deliveries, now = cjson.decode(ARGV[1]), tonumber(ARGV[2])
local cap, age = tonumber(ARGV[3]), tonumber(ARGV[4])
local fresh = {}
local time = redis.call('TIME')
local server_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local function admit_item(delivery, at, item)
  local ms = math.floor(at / 1000)
  local ttl, dedupe, jti, jti_ttl, entries = item[1], item[2], item[3], item[4], item[5]
  for position, text in ipairs(dedupe) do
    local key = P .. 'seen:' .. text
    local first = redis.call('GET', key)
    if first then
      if first ~= delivery then return position == 1 and 'duplicate' or 'replayed-body', first end
      if fresh[key] then return 'duplicate', first end
      return 'queued', false
    end
  end
  if jti ~= '' then
    local key = P .. 'jti:' .. jti
    local owner = redis.call('GET', key)
    if owner and owner ~= delivery then return 'replayed-token', owner end
    redis.call('SET', key, delivery, 'EX', jti_ttl)
  end
  for _, text in ipairs(dedupe) do
    local key = P .. 'seen:' .. text
    redis.call('SET', key, delivery, 'EX', ttl)
    fresh[key] = true
  end
  for _, entry in ipairs(entries) do
    redis.call('RPUSH', P .. 'lane:' .. entry[1], string.format('%d', ms) .. '\n' .. delivery .. '\n' .. entry[2])
    -- due now: a receiver whose clock is ahead must not put it off
    redis.call('ZADD', P .. 'ready', 'NX', math.min(ms, server_ms), entry[1])
  end
  return 'queued', false, true
end

-- The outcome stands before the record's own text, which is never decoded here (cjson would change it).
local function record(delivery, at, results, text, events)
  local outcome, reason, first = 'rejected', 'replayed-token', results[1][2]
  for _, result in ipairs(results) do
    if result[1] == 'queued' then outcome, reason, first = 'forwarded', '', '' break end
    if result[1] ~= 'replayed-token' and outcome ~= 'duplicate' then outcome, reason, first = 'duplicate', result[1], result[2] end
  end
  local class = outcome == 'rejected' and 'refused' or 'admitted'
  keep_record(class, delivery, at, outcome .. '|' .. reason .. '|' .. first .. '\n' .. text)
  if events ~= '' then redis.call('HSET', P .. 'rec:events', delivery, events) end
  return class
end

local answer, classes = {}, {}
for _, row in ipairs(deliveries) do
  local delivery, at, text, items = row[1], row[2], row[3], row[4]
  local results, kept = {}, {}
  for _, item in ipairs(items) do
    local status, first, queued = admit_item(delivery, at, item)
    results[#results + 1] = {status, first}
    if queued then for _, entry in ipairs(item[5]) do kept[#kept + 1] = entry[1] .. '\t' .. entry[2] end end
  end
  if #results > 0 then
    classes[record(delivery, at, results, text, table.concat(kept, '\n'))] = true
  end
  answer[#answer + 1] = results
end
for class in pairs(classes) do trim_records(class, cap, age, now) end
return cjson.encode(answer)
