-- Tells for how long the server has been up, and whether it persists every write.
--
-- KEYS   any: none is touched
-- ARGV   none
-- Reply  seconds since the start, 1 if writes go to an append-only file, else 0
--
-- Twice is harmless: it writes nothing.

local up = string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)')
local appends = string.match(redis.call('INFO', 'persistence'), 'aof_enabled:(%d)')
return { tonumber(up), tonumber(appends) }
