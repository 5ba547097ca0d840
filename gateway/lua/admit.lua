-- admit: dedupe and enqueue every item of every delivery of one group commit, and write their records.
-- Crash prevented: between "the id is consumed" and "the event is queued" the process or the server may die; done in two
-- steps, the provider's retry would be a duplicate of something that was never queued. A delivery that asks again (its
-- first answer was lost) finds its own id and is told success; nothing is queued twice.
-- All is read and decided first, then written, a command for many: most of this script's time is the number of its calls.
-- A delivery that a rollover makes of a dispatch keeps runs out of that from the same instant on, and is not queued where a
-- run has it: done in two steps, a run that is judged meanwhile would have the old dispatch and another run the new one, or,
-- where the second step fails, none would have either.
-- The queue is written first, so that a script that stops half-way queues twice rather than never.
-- ARGV: payload, now, record cap, record age (times in microseconds, as records have them)
local deliveries, now = cjson.decode(ARGV[1]), tonumber(ARGV[2])
local cap, age = tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local server_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local owners, fresh, claims = {}, {}, {} -- who has a key, whether of this call, and what is to be set: key, owner, seconds
local carried = {}                       -- dispatches whose events go on
local lanes, queues, due = {}, {}, {}    -- in the order of their first entries

local function claim(key, owner, ttl)
  owners[key], fresh[key] = owner, true
  claims[#claims + 1] = {key, owner, ttl}
end

local function enqueue(lane, ms, delivery, event)
  if not queues[lane] then
    lanes[#lanes + 1], queues[lane] = lane, {}
    due[lane] = math.min(ms, server_ms) -- a receiver whose clock is ahead must not put it off
  end
  append(queues[lane], string.format('%d', ms) .. '\n' .. delivery .. '\n' .. event)
end

local function admit_item(delivery, at, item)
  local ttl, dedupe, jti, jti_ttl, entries = unpack(item)
  for position, text in ipairs(dedupe) do
    local key = P .. 'seen:' .. text
    local first = owners[key]
    if first then
      if first ~= delivery then return position == 1 and 'duplicate' or 'replayed-body', first end
      if fresh[key] then return 'duplicate', first end
      return 'queued', false
    end
  end
  if jti ~= '' then
    local key = P .. 'jti:' .. jti
    local owner = owners[key]
    if owner and owner ~= delivery then return 'replayed-token', owner end
    claim(key, delivery, jti_ttl)
  end
  for _, text in ipairs(dedupe) do claim(P .. 'seen:' .. text, delivery, ttl) end
  for _, entry in ipairs(entries) do enqueue(entry[1], math.floor(at / 1000), delivery, entry[2]) end
  return 'queued', false, true
end

-- The outcome stands before the record's own text, which is never decoded here (cjson would change it).
local function outcome_of(results)
  local outcome, reason, first = 'rejected', 'replayed-token', results[1][2]
  for _, result in ipairs(results) do
    if result[1] == 'queued' then return 'forwarded', '', '' end
    if result[1] ~= 'replayed-token' and outcome ~= 'duplicate' then outcome, reason, first = 'duplicate', result[1], result[2] end
  end
  return outcome, reason, first
end

local function find_owners()
  local keys = {}
  for _, row in ipairs(deliveries) do
    for _, item in ipairs(row[4]) do
      for _, text in ipairs(item[2]) do append(keys, P .. 'seen:' .. text) end
      if item[3] ~= '' then append(keys, P .. 'jti:' .. item[3]) end
    end
  end
  for from = 1, #keys, ARGUMENTS do
    local to = math.min(from + ARGUMENTS - 1, #keys)
    for at, owner in ipairs(redis.call('MGET', unpack(keys, from, to))) do owners[keys[from + at - 1]] = owner end
  end
end

local answer, events = {}, {}
local rows, times = {admitted = {}, refused = {}}, {admitted = {}, refused = {}}
find_owners()
for _, row in ipairs(deliveries) do
  local delivery, at, text, items, from = unpack(row)
  local results, kept, taken = {}, {}, false
  if from then
    if redis.call('HEXISTS', dispatch_key(from), 'run') == 1 then taken = true else append(carried, from) end
  end
  for _, item in ipairs(taken and {} or items) do
    local status, first, queued = admit_item(delivery, at, item)
    append(results, {status, first})
    if queued then for _, entry in ipairs(item[5]) do append(kept, entry[1] .. '\t' .. entry[2]) end end
  end
  if #results > 0 then
    local outcome, reason, first = outcome_of(results)
    local class = outcome == 'rejected' and 'refused' or 'admitted'
    append(rows[class], delivery, outcome .. '|' .. reason .. '|' .. first .. '\n' .. text)
    append(times[class], at, delivery)
    if #kept > 0 then append(events, delivery, table.concat(kept, '\n')) end
  end
  append(answer, taken and {{'taken', false}} or results)
end
for _, lane in ipairs(lanes) do
  each('RPUSH', P .. 'lane:' .. lane, queues[lane])
  redis.call('ZADD', P .. 'ready', 'NX', due[lane], lane)
end
for _, id in ipairs(carried) do -- one that was forgotten meanwhile has no run to keep out, and gets no key without an end
  if redis.call('EXISTS', dispatch_key(id)) == 1 then redis.call('HSET', dispatch_key(id), 'carried', 1) end
end
for _, one in ipairs(claims) do redis.call('SET', one[1], one[2], 'EX', one[3]) end
each('HSET', P .. 'rec:events', events)
for class in pairs(rows) do
  if #rows[class] > 0 then
    keep_records(class, rows[class], times[class])
    trim_records(class, cap, age, now)
  end
end
return cjson.encode(answer)
