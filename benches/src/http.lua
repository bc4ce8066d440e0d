-- wrk: POST of 316 bytes. MODE new: a key per request; replay: one of 64 keys; none: no key. SEED makes keys of one run its own.
local mode, seed = os.getenv("MODE"), os.getenv("SEED")
local n, thread = 0, 0
local threads = 0
function setup(it)
  threads = threads + 1
  it:set("thread", threads)
end
function init()
  wrk.method = "POST"
  wrk.body = '{"customer":"cus_8f3b2c1d","total":129900,"currency":"EUR","items":[{"sku":"A-100234","count":2,"price":49950},' ..
    '{"sku":"B-558120","count":1,"price":30000}],"address":{"name":"Ada Lovelace","street":"12 St James Square",' ..
    '"city":"London","zip":"SW1Y 4JH","country":"GB"},"note":"please ring twice, the bell is old ...."}'
  wrk.headers["Content-Type"] = "application/json"
  wrk.headers["Authorization"] = "Bearer ada"
end
function request()
  n = n + 1
  if mode == "new" then
    wrk.headers["Idempotency-Key"] = string.format("%s-%d-%012x", seed, thread, n)
  elseif mode == "replay" then
    wrk.headers["Idempotency-Key"] = string.format("%s-%012x", seed, n % 64)
  end
  return wrk.format(nil, "/bench")
end
function done(summary, latency)
  local errors = summary.errors
  io.write(string.format("\nFOUND %d %d %d %d %d\n", summary.requests, summary.duration, latency:percentile(50),
    latency:percentile(99), errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
