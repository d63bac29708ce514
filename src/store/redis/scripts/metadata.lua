-- Returns the description of the holder of a lock, and how many connections listen for the lock.
--
-- KEYS   metadata: see `annotate.lua`
-- ARGV   channel of the lock; NUMSUB or SHARDNUMSUB
-- Reply  the number of subscribers (-1: the server does not tell), then fields and values
--
-- Twice is harmless: it writes nothing.

local reply = { -1 }
local counted = redis.pcall('PUBSUB', ARGV[2], ARGV[1])
if counted[2] then
  reply[1] = counted[2]
end
for _, text in ipairs(redis.call('HGETALL', KEYS[1])) do
  reply[#reply + 1] = text
end
return reply
