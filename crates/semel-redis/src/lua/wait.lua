-- Notes in a record that somebody waits for the end of its run. KEYS: record.
local head = redis.call('GETRANGE', KEYS[1], 40, 42)
local state = string.sub(head, 1, 2)
if state == '\2c' or state == '\2u' then
  local flags = string.byte(head, 3)
  if flags < 4 then
    redis.call('SETRANGE', KEYS[1], 42, string.char(flags + 4))
  end
end
return 1
