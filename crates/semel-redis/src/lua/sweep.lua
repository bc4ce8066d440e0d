-- Tidies records: what Record::swept of semel-core does.
-- KEYS: records. ARGV: changes at most, grace in µs; then the token under which the registry names the record, '' where
-- it was found otherwise; per item.
-- Answers for each item looked at: 0 nothing, 1 now unknown, 2 now a tombstone, 3 removed; and 4 more if the run under
-- that token has ended, so that the registry need not name it. Stops at the maximum.
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local max, grace = tonumber(ARGV[1]), tonumber(ARGV[2])
local replies, changes = {}, 0
for i = 1, #KEYS do
  if changes >= max then break end
  local key, token = KEYS[i], ARGV[i + 2]
  local reply, over = 0, 0
  -- Up to the withdrawn nonces and the digest: everything but the outcome.
  local head = redis.pcall('GETRANGE', key, 0, 89 + 16 * 8 + 31)
  -- Somebody else's data under one of our names.
  if type(head) ~= 'string' then head = '' end
  local state = string.sub(head, 42, 42)
  local known = #head >= 89 and string.byte(head, 41) == 2
  if #head == 0 or (known and (string.sub(head, 17, 24) ~= token or (state ~= 'c' and state ~= 'u'))) then
    over = 4
  end
  if known then
    local first, last = struct.unpack('>i8i8', head)
    local withdrawn, count = struct.unpack('>i8B', head, 81)
    local ends
    if state == 'd' then ends = last elseif state == 't' then ends = first elseif state == 'a' then ends = 0
    -- RERUN_KEPT_MS, in µs.
    elseif state == 'c' and string.byte(head, 43) % 2 == 0 then ends = first + 2678400000000 end
    if ends and math.max(ends, withdrawn) + grace <= now then
      call('DEL', key)
      reply = 3
    elseif state == 'd' and first <= now then
      call('SET', key, struct.pack('>i8i8', last, 0) .. string.sub(head, 17, 41) .. 't'
        .. string.sub(head, 43, 89 + 16 * count + 32), 'KEEPTTL')
      reply = 2
    elseif state == 'c' and string.byte(head, 43) % 2 == 1 and first <= now then
      call('SETRANGE', key, 41, 'u')
      reply = 1
    end
    if reply > 0 then changes = changes + 1 end
  end
  replies[i] = reply + over
end
return replies
