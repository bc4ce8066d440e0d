-- Writes records that are still what the caller saw; of all others it shows the record.
-- KEYS: record, registry; per item. ARGV: seen, new ('' for none), expiry in ms (0 for none), 'g' when it grants,
-- channel; per item. Answers true, or the token of a grant; else the record or nothing; for each item, and the time.
local time = redis.call('TIME')
local replies, n = {}, 0
for i = 1, #KEYS, 2 do
  local a = 5 * n
  local seen, new = ARGV[a + 1], ARGV[a + 2]
  local reply = redis.call('GET', KEYS[i])
  if (reply or '') == seen then
    reply = 1
    if ARGV[a + 4] == 'g' then
      local id = redis.call('XADD', KEYS[i + 1], '*', 'k', KEYS[i])
      local ms, seq = string.match(id, '^(%d+)-(%d+)$')
      if tonumber(seq) > 127 then
        id = redis.call('XADD', KEYS[i + 1], string.format('%.0f', ms + 1) .. '-0', 'k', KEYS[i])
        redis.call('XDEL', KEYS[i + 1], ms .. '-' .. seq)
        ms, seq = ms + 1, 0
      end
      reply = (ms - 1767225600000) * 8192 + seq * 64 + tonumber(string.sub(KEYS[i + 1], -3, -2), 16)
      new = string.sub(new, 1, 3) .. struct.pack('>i8', reply) .. string.sub(new, 12)
    end
    if new == '' then
      redis.call('DEL', KEYS[i])
    elseif ARGV[a + 3] == '0' then
      redis.call('SET', KEYS[i], new)
    else
      redis.call('SET', KEYS[i], new, 'PX', ARGV[a + 3])
    end
    -- Somebody waits, and the new record says that the wait is over.
    if #seen > 3 and string.byte(seen, 3) >= 4 and (#new < 3 or string.byte(new, 3) < 4) then
      redis.pcall('PUBLISH', ARGV[a + 5], KEYS[i])
    end
  end
  n = n + 1
  replies[n] = reply
end
replies[n + 1] = time[1] * 1000000 + time[2]
return replies
