-- Goes before the scripts that grant.
local call = redis.call
-- Makes an entry of the registry, about all that a call grants (names) or about one key ('' for names); answers its first
-- token and its ms. The id of the entry makes the tokens: ids only grow, whatever the clock does and whatever is deleted.
local function enter(registry, names, key)
  local field, value = 'b', names
  if names == '' then field, value = 'k', key end
  local id = call('XADD', registry, '*', field, value)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  if tonumber(seq) > 127 then
    id = call('XADD', registry, string.format('%.0f', ms + 1) .. '-0', field, value)
    call('XDEL', registry, ms .. '-' .. seq)
    ms, seq = ms + 1, 0
  end
  return (ms - 1767225600000) * 8192 + seq * 64, tonumber(ms)
end
