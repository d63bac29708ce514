-- Returns the description of a manager.
--
-- KEYS   manager: see `describe.lua`
-- ARGV   none
-- Reply  fields and values
--
-- Twice is harmless: it writes nothing.

return redis.call('HGETALL', KEYS[1])
