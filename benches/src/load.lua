-- wrk: POST of BODY to TARGET, with AUTHORIZATION if there is one. MODE new: a key per request; replay: one of 64 keys;
-- none: no key. SEED makes keys of one run its own.
local mode, seed, target = os.getenv("MODE"), os.getenv("SEED"), os.getenv("TARGET")
local n, thread = 0, 0
local threads = 0
function setup(it)
  threads = threads + 1
  it:set("thread", threads)
end
function init()
  wrk.method = "POST"
  wrk.body = os.getenv("BODY")
  wrk.headers["Content-Type"] = "application/json"
  wrk.headers["Authorization"] = os.getenv("AUTHORIZATION")
end
function request()
  n = n + 1
  if mode == "new" then
    wrk.headers["Idempotency-Key"] = string.format("%s-%d-%012x", seed, thread, n)
  elseif mode == "replay" then
    wrk.headers["Idempotency-Key"] = string.format("%s-%012x", seed, n % 64)
  end
  return wrk.format(nil, target)
end
function done(summary, latency)
  local errors = summary.errors
  io.write(string.format("\nFOUND %d %d %d %d %d\n", summary.requests, summary.duration, latency:percentile(50),
    latency:percentile(99), errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
