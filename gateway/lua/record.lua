-- record: write buffered delivery records and trim their classes.
-- Crash prevented: a row whose index entry is missing would never be trimmed, and the hash would grow without a bound.
-- ARGV: rows [id, at, class, text], now, cap, age (times in microseconds)
local now, cap, age, classes = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), {}
for _, row in ipairs(cjson.decode(ARGV[1])) do
  keep_record(row[3], row[1], row[2], '||\n' .. row[4])
  classes[row[3]] = true
end
for class in pairs(classes) do trim_records(class, cap, age, now) end
return 1
