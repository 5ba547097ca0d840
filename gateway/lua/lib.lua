-- Put before every other script. KEYS[1] is the prefix of one source ("gw:{source}:"); all keys that a script touches
-- start with it, so that they share one hash slot. Times are whole milliseconds (records: microseconds) of the caller, except leases:
-- those expire by the server's clock, which all dispatchers share.
local P = KEYS[1]
local SETTLED_S = 604800         -- a settled dispatch stays known for 7 days
local DEAD_S = 2592000           -- a dead letter lives for 30 days

local function dispatch_key(id) return P .. 'dispatch:' .. id end

local function holds(lane, token) return redis.call('GET', P .. 'lease:' .. lane) == token end

-- A server at its `maxmemory` refuses a script's first write where that may need memory, and none after a first one that
-- cannot. What empties the queue begins with this, so that a full store is sent empty and not stuck.
-- https://redis.io/docs/latest/develop/programmability/eval-intro/ (deny-oom, within a script that has written)
local function insist() redis.call('PERSIST', KEYS[1]) end

-- The lane's next turn: at `due` where it has work, else nothing of it remains.
local function turn(lane, due)
  if redis.call('EXISTS', P .. 'sealed:' .. lane, P .. 'lane:' .. lane) > 0 then
    redis.call('ZADD', P .. 'ready', due, lane)
  else
    redis.call('ZREM', P .. 'ready', lane)
  end
end

-- Give a leased batch back unsettled; its lane has its next turn at `due`. False where the lease was lost, or where the
-- holder before us settled the batch after all: its state is no longer ours to write.
local function give_back(lane, id, token, due)
  if not holds(lane, token) then return false end
  redis.call('DEL', P .. 'lease:' .. lane)
  turn(lane, due)
  return redis.call('LINDEX', P .. 'sealed:' .. lane, 0) == id
end

-- Take a settled batch out of its lane: its own lease goes with it, another's (after ours expired) stays.
local function leave(lane, id, token, now)
  local removed = redis.call('LREM', P .. 'sealed:' .. lane, 1, id) == 1
  local lease = redis.call('GET', P .. 'lease:' .. lane)
  if lease == token then redis.call('DEL', P .. 'lease:' .. lane) end
  if not lease or lease == token then turn(lane, now) end
  return removed
end

-- A question ends with the dispatch that it is about; what comes back from the dead letters is asked about anew.
local function forget_ask(id)
  redis.call('HDEL', dispatch_key(id), 'ask_asked', 'ask_expires', 'ask_answer', 'ask_by')
  redis.call('ZREM', P .. 'asks', id)
end

-- The deliveries stay: by them a run that is refused after a rollover finds the events that are sent anew.
local function forget_events(key)
  redis.call('HDEL', key, 'events')
  redis.call('EXPIRE', key, SETTLED_S)
end

local function append(list, ...)
  for at = 1, select('#', ...) do list[#list + 1] = (select(at, ...)) end
end

-- Call a command on a key with any number of arguments, a bounded number a call: Lua's stack is finite.
local ARGUMENTS = 1000           -- even, so that pairs stay together
local function each(command, key, arguments)
  for from = 1, #arguments, ARGUMENTS do
    redis.call(command, key, unpack(arguments, from, math.min(from + ARGUMENTS - 1, #arguments)))
  end
end

-- Records of one class: a hash and its index by time (microseconds: a client's requests follow each other within a
-- millisecond), capped by number and age, gone when nothing is added for that long. `rows` and `times` are lists of
-- id, value and at, id.
local function keep_records(class, rows, times)
  each('HSET', P .. 'rec:' .. class, rows)
  each('ZADD', P .. 'rec:' .. class .. ':at', times)
end

local function trim_records(class, cap, age_s, now)
  local index, rows = P .. 'rec:' .. class .. ':at', P .. 'rec:' .. class
  local gone = redis.call('ZRANGEBYSCORE', index, '-inf', now - age_s * 1000000, 'LIMIT', 0, 1000)
  local over = redis.call('ZCARD', index) - #gone - cap
  if over > 0 then
    for _, id in ipairs(redis.call('ZRANGE', index, #gone, #gone + math.min(over, 1000) - 1)) do gone[#gone + 1] = id end
  end
  each('ZREM', index, gone)
  each('HDEL', rows, gone)
  if class == 'admitted' then
    each('HDEL', P .. 'rec:events', gone)
    each('HDEL', P .. 'rec:dispatches', gone)
  end
  for _, key in ipairs({index, rows, P .. 'rec:events', P .. 'rec:dispatches'}) do redis.call('EXPIRE', key, age_s) end
end
