-- Notes in a record that somebody waits for the end of its run. KEYS: record.
local head = redis.call('GETRANGE', KEYS[1], 0, 2)
local state = string.sub(head, 1, 2)
if state == '\1c' or state == '\1u' then
  local flags = string.byte(head, 3)
  if flags < 4 then
    redis.call('SETRANGE', KEYS[1], 2, string.char(flags + 4))
  end
end
return 1
