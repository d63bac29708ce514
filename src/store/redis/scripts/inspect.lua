-- Returns the holder of a lock.
--
-- KEYS   lock
-- ARGV   none
-- Reply  time to live in ms (-2: not held, -1: never expires), then fields and values of the hash
--
-- Twice is harmless: it writes nothing.

local reply = { redis.call('PTTL', KEYS[1]) }
for _, text in ipairs(redis.call('HGETALL', KEYS[1])) do
  reply[#reply + 1] = text
end
return reply
