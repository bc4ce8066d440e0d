-- Stores outcomes of runs whose right is current; of all others it only shows the record.
-- KEYS: record; per item. ARGV: lease, retention in µs, tombstone in µs, expiry in ms, tail, channel; per item.
-- Answers until when the outcome is kept, or the record or nothing, for each item, and the time in µs last.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local replies = {}
for i = 1, #KEYS do
  local a = 6 * (i - 1)
  local reply = redis.call('GET', KEYS[i])
  if reply and string.sub(reply, 4, 27) == ARGV[a + 1] then
    local state = string.sub(reply, 1, 2)
    if state == '\1c' or state == '\1u' then
      local flags, retain = string.byte(reply, 3), now + ARGV[a + 2]
      redis.call('SET', KEYS[i], '\1d\0' .. ARGV[a + 1]
        .. struct.pack('>i8i8', retain, retain + ARGV[a + 3]) .. string.sub(reply, 44) .. ARGV[a + 5],
        'PX', ARGV[a + 4])
      if flags >= 4 then
        -- A hint that cannot be sent must not undo the outcome.
        redis.pcall('PUBLISH', ARGV[a + 6], KEYS[i])
      end
      reply = retain
    end
  end
  replies[i] = reply
end
replies[#KEYS + 1] = now
return replies
