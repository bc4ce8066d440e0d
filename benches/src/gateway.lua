-- wrk: POST with a body. MODE new: a key per request; replay: one of 64 keys; none: no key. SEED makes keys of one run its own.
local mode, seed = os.getenv("MODE"), os.getenv("SEED")
local n, thread = 0, 0
local threads = 0
function setup(it)
  threads = threads + 1
  it:set("thread", threads)
end
function init()
  wrk.method = "POST"
  wrk.body = '{"customer":"c-8f3b2c1d","amount":129900,"currency":"EUR","items":[{"sku":"A-100234","qty":2},{"sku":"B-558120","qty":1}]}'
  wrk.headers["Content-Type"] = "application/json"
end
function request()
  n = n + 1
  if mode == "new" then
    wrk.headers["Idempotency-Key"] = seed .. "-" .. thread .. "-" .. n
  elseif mode == "replay" then
    wrk.headers["Idempotency-Key"] = seed .. "-" .. (n % 64)
  end
  return wrk.format(nil, "/orders")
end
function done(summary, latency)
  local errors = summary.errors
  io.write(string.format("\nFOUND %d %d %d %d %d\n", summary.requests, summary.duration, latency:percentile(50),
    latency:percentile(99), errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
