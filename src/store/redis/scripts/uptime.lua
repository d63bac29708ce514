-- Returns for how long the server has been up, and the id of its run.
--
-- KEYS   none
-- ARGV   none
-- Reply  seconds since the start; the server's run id, or an empty string if it has none
--
-- Twice is harmless: it writes nothing.

local info = redis.call('INFO', 'server')
local up = string.match(info, 'uptime_in_seconds:(%d+)')
return { tonumber(up), string.match(info, 'run_id:(%x+)') or '' }
