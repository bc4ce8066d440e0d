-- Grants keys of which nothing is stored; of all others it only shows the record.
-- KEYS: registry, then the records. ARGV: names for one entry of the registry about all ('' for an entry about each), what
-- is added to the token of such an entry, latest ms that the time can be, then per item: record without its times and
-- token, lease in µs.
-- Answers a token or the record for each item, and the time in µs last; if one entry grants several items and nothing is
-- shown, only the first token and the time; of one item that is granted at the token's ms only the token.
local count, names = #KEYS - 1, ARGV[1]
local replies, shown, first, now = {}, false, nil, nil
local function ask()
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
if count > 1 then ask() end
for i = 1, count do
  local key = KEYS[i + 1]
  local reply = call('GET', key)
  if reply then
    shown = true
  else
    if not first or names == '' then
      local ms
      first, ms = enter(KEYS[1], names, key)
      if not now then
        -- It is the time as well, unless the clock was set back; the end of its millisecond, so that no lease is shorter than
        -- asked.
        if ms > tonumber(ARGV[3]) then
          ask()
          shown = true
        else
          now = ms * 1000 + 999
        end
      end
    end
    if names == '' then reply = first + ARGV[2] else reply = first + i - 1 end
    call('SET', key, struct.pack('>i8i8i8', now + ARGV[2 * i + 3], 0, reply) .. ARGV[2 * i + 2])
  end
  replies[i] = reply
end
if not shown then
  if count == 1 then return replies[1] end
  if names ~= '' then return {first, now} end
end
if not now then ask() end
replies[count + 1] = now
return replies
