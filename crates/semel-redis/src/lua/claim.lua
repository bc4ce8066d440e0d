-- Grants keys of which nothing is stored; of all others it only shows the record.
-- KEYS: record, registry; per item. ARGV: head, nonce, tail, lease in µs; per item (see record.rs).
-- Answers a token or the record for each item, and the time in µs last.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local replies, n = {}, 0
for i = 1, #KEYS, 2 do
  local reply = redis.call('GET', KEYS[i])
  if not reply then
    -- The registry's next id makes the token: it only grows, whatever the clock does and whatever is deleted.
    local id = redis.call('XADD', KEYS[i + 1], '*', 'k', KEYS[i])
    local ms, seq = string.match(id, '^(%d+)-(%d+)$')
    if tonumber(seq) > 127 then
      id = redis.call('XADD', KEYS[i + 1], string.format('%.0f', ms + 1) .. '-0', 'k', KEYS[i])
      redis.call('XDEL', KEYS[i + 1], ms .. '-' .. seq)
      ms, seq = ms + 1, 0
    end
    reply = (ms - 1767225600000) * 8192 + seq * 64 + tonumber(string.sub(KEYS[i + 1], -3, -2), 16)
    local a = 4 * n
    redis.call('SET', KEYS[i], ARGV[a + 1] .. struct.pack('>i8', reply) .. ARGV[a + 2]
      .. struct.pack('>i8', now + ARGV[a + 4]) .. ARGV[a + 3])
  end
  n = n + 1
  replies[n] = reply
end
replies[n + 1] = now
return replies
