-- Stores outcomes of runs whose right is current; of all others it only shows the record.
-- KEYS: records. ARGV: channel, then per item: right with the layout's version, how long it is kept, tail.
-- Answers the time in µs alone if all are stored; else 1 or the record or nothing for each item, and the time last.
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local replies, shown = {}, false
local keep, times, expiry
for i = 1, #KEYS do
  local key, a = KEYS[i], 3 * i - 1
  local reply = call('GET', key)
  local state, flags
  if reply and string.sub(reply, 17, 41) == ARGV[a] then state, flags = string.byte(reply, 42, 43) end
  -- Claimed or unknown.
  if state == 99 or state == 117 then
    if keep ~= ARGV[a + 1] then
      keep = ARGV[a + 1]
      -- Retention and tombstone in µs, then the expiry in ms as digits.
      local retention, tombstone = struct.unpack('>i8i8', keep)
      times, expiry = struct.pack('>i8i8', now + retention, now + retention + tombstone), string.sub(keep, 17)
    end
    call('SET', key, times .. ARGV[a] .. 'd\0' .. string.sub(reply, 44) .. ARGV[a + 2], 'PX', expiry)
    if flags >= 4 then
      -- A hint that cannot be sent must not undo the outcome.
      redis.pcall('PUBLISH', ARGV[1], key)
    end
    reply = 1
  else
    shown = true
  end
  replies[i] = reply
end
if not shown then return now end
replies[#KEYS + 1] = now
return replies
