-- Shows records. KEYS: record; per item. Answers the record or nothing for each item, and the time in µs last.
local time = redis.call('TIME')
local replies = {}
for i = 1, #KEYS do
  replies[i] = redis.call('GET', KEYS[i])
end
replies[#KEYS + 1] = time[1] * 1000000 + time[2]
return replies
