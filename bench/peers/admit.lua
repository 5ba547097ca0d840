-- What the durable peers do in one step: dedupe, then append. KEYS: id, queue; ARGV: entry
if not redis.call('SET', KEYS[1], '1', 'NX', 'PX', 259200000) then return 0 end
redis.call('XADD', KEYS[2], '*', 'e', ARGV[1])
return 1
