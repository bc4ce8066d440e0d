-- For tests: makes time pass for the records in a database. What Redis drops by itself is left alone, so that a sweep
-- counts what it removes. ARGV: prefix, µs.
local cursor = '0'
repeat
  local answer = redis.call('SCAN', cursor, 'MATCH', ARGV[1] .. '{*', 'COUNT', 1000)
  cursor = answer[1]
  for _, key in ipairs(answer[2]) do
    for _, at in ipairs({0, 8, 80}) do
      local bytes = redis.pcall('GETRANGE', key, at, at + 7)
      if type(bytes) == 'string' and #bytes == 8 then
        local time = struct.unpack('>i8', bytes)
        if time ~= 0 then
          redis.call('SETRANGE', key, at, struct.pack('>i8', time - ARGV[2]))
        end
      end
    end
  end
until cursor == '0'
