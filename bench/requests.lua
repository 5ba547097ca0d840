-- wrk script: sends prepared, signed requests, each once. argv: FILE of lines "<delivery id> <signature> <nonce>".
local lines, prefix, suffix, headers, path = {}, "", "", {}, ""
local threads = 0
function setup(thread) thread:set("number", threads) threads = threads + 1 end
function init(args)
  path = args[1]
  local file = assert(io.open(args[2] .. ".body", "rb"))
  local body = file:read("*a") file:close()
  local at = assert(body:find("@NONCE@", 1, true))
  prefix, suffix = body:sub(1, at - 1), body:sub(at + 7)
  local count, total = 0, tonumber(args[3])
  for line in io.lines(args[2]) do
    if count % total == number then lines[#lines + 1] = line end
    count = count + 1
  end
  at_line = 0
end
function request()
  at_line = at_line + 1
  if at_line > #lines then at_line = 1 end
  local id, signature, nonce = lines[at_line]:match("^(%S+) (%S+) (%S+)$")
  return wrk.format("POST", path, {
    ["Content-Type"] = "application/json", ["X-GitHub-Event"] = "issues", ["X-GitHub-Delivery"] = id,
    ["X-Hub-Signature-256"] = "sha256=" .. signature, ["User-Agent"] = "GitHub-Hookshot/044aadd",
    ["X-GitHub-Hook-ID"] = "292430182", ["X-GitHub-Hook-Installation-Target-ID"] = "79929171",
    ["X-GitHub-Hook-Installation-Target-Type"] = "repository", ["Accept"] = "*/*",
  }, prefix .. nonce .. suffix)
end
function done(summary, latency)
  io.write(string.format('JSON {"requests":%d,"duration_us":%d,"p50":%d,"p99":%d,"p999":%d,"non2xx":%d,"socket":%d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99), latency:percentile(99.9),
    summary.errors.status, summary.errors.read + summary.errors.write + summary.errors.connect + summary.errors.timeout))
end
