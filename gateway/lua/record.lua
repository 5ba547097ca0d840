-- record: write buffered delivery records and trim their classes.
-- Crash prevented: a row whose index entry is missing would never be trimmed, and the hash would grow without a bound.
-- ARGV: rows [id, at, class, text], now, cap, age (times in microseconds)
local now, cap, age, rows, times = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), {}, {}
for _, row in ipairs(cjson.decode(ARGV[1])) do
  local id, at, class, text = unpack(row)
  rows[class], times[class] = rows[class] or {}, times[class] or {}
  append(rows[class], id, '||\n' .. text)
  append(times[class], at, id)
end
for class in pairs(rows) do
  keep_records(class, rows[class], times[class])
  trim_records(class, cap, age, now)
end
return 1
