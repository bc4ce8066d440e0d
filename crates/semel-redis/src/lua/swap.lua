-- Writes records that are still what the caller saw; of all others it shows the record.
-- KEYS: registry, then the records. ARGV: names and addition to tokens as in claim.lua, channel, then per item: seen, new
-- ('' for none), expiry in ms (0 for none), 'g' when it grants.
-- Answers 1, or the token of a grant; else the record or nothing; for each item, and the time in µs last.
local time = call('TIME')
local names = ARGV[1]
local replies, first = {}, nil
for i = 1, #KEYS - 1 do
  local key, a = KEYS[i + 1], 4 * i
  local seen, new = ARGV[a], ARGV[a + 1]
  local reply = call('GET', key)
  if (reply or '') == seen then
    reply = 1
    if ARGV[a + 3] == 'g' then
      if not first or names == '' then
        first = enter(KEYS[1], names, key)
      end
      if names == '' then reply = first + ARGV[2] else reply = first + i - 1 end
      new = string.sub(new, 1, 16) .. struct.pack('>i8', reply) .. string.sub(new, 25)
    end
    if new == '' then
      call('DEL', key)
    elseif ARGV[a + 2] == '0' then
      call('SET', key, new)
    else
      call('SET', key, new, 'PX', ARGV[a + 2])
    end
    -- Somebody waits, and the new record says that the wait is over.
    if #seen > 43 and string.byte(seen, 43) >= 4 and (#new < 43 or string.byte(new, 43) < 4) then
      redis.pcall('PUBLISH', ARGV[3], key)
    end
  end
  replies[i] = reply
end
replies[#KEYS] = time[1] * 1000000 + time[2]
return replies
