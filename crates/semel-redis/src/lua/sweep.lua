-- Tidies records: what Record::swept of semel-core does, and entries of the registry whose run has ended.
-- KEYS: record, registry; per item. ARGV: changes at most, grace in µs; then token and id of the registry's entry,
-- both '' where the record was found otherwise; per item.
-- Answers for each item looked at: 0 nothing, 1 now unknown, 2 now a tombstone, 3 removed. Stops at the maximum.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local max, grace = tonumber(ARGV[1]), tonumber(ARGV[2])
local replies, n, changes = {}, 0, 0
for i = 1, #KEYS, 2 do
  if changes >= max then break end
  local token, id = ARGV[3 + 2 * n], ARGV[4 + 2 * n]
  n = n + 1
  replies[n] = 0
  -- Up to the withdrawn nonces and the digest: everything but the outcome.
  local head = redis.pcall('GETRANGE', KEYS[i], 0, 89 + 16 * 8 + 31)
  -- Somebody else's data under one of our names.
  if type(head) ~= 'string' then head = '' end
  local state = string.sub(head, 2, 2)
  local known = #head >= 89 and string.byte(head, 1) == 1
  if id ~= '' and (#head == 0 or (known and (string.sub(head, 4, 11) ~= token or (state ~= 'c' and state ~= 'u')))) then
    redis.call('XDEL', KEYS[i + 1], id)
  end
  if known then
    local first, last = struct.unpack('>i8i8', head, 28)
    local withdrawn, count = struct.unpack('>i8B', head, 81)
    local ends
    if state == 'd' then ends = last elseif state == 't' then ends = first elseif state == 'a' then ends = 0 end
    if ends and math.max(ends, withdrawn) + grace <= now then
      redis.call('DEL', KEYS[i])
      replies[n] = 3
    elseif state == 'd' and first <= now then
      local keep = 89 + 16 * count
      redis.call('SET', KEYS[i], '\1t' .. string.sub(head, 3, 27) .. struct.pack('>i8i8', last, 0)
        .. string.sub(head, 44, keep + 32), 'KEEPTTL')
      replies[n] = 2
    elseif state == 'c' and string.byte(head, 3) % 2 == 1 and first <= now then
      redis.call('SETRANGE', KEYS[i], 1, 'u')
      replies[n] = 1
    end
    if replies[n] > 0 then changes = changes + 1 end
  end
end
return replies
