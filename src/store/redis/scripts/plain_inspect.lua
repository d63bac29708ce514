-- Returns the holder of a lock that is a string.
--
-- KEYS   lock
-- ARGV   none
-- Reply  as `inspect.lua`: time to live in ms (-2: not held, -1: never expires); then the holder id and a hold count of 1, or the
--        mark and its text
--
-- Twice is harmless: it writes nothing.

local there = redis.call('GET', KEYS[1])
if not there then
  return { -2 }
end
local mark, text = string.match(there, '^(leasehold:%l+) (.*)$')
return { redis.call('PTTL', KEYS[1]), mark or there, text or '1' }
