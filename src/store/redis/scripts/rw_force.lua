-- Takes a read-write lock away from all its holders, and wakes waiters. `rw_common.lua` and `rw_wake.lua` come before.
--
-- KEYS   lock
-- ARGV   none
-- Reply  1 if it was held, 0 if not
--
-- Twice is harmless: the second run finds nothing, or does what was requested again. The time-out keys of readers expire by
-- themselves, and mean nothing without the hash.

local lock = KEYS[1]
local mode = mode_of(lock)
doing = 'DEL'
call('DEL', lock)
wake(lock, '1')
return mode and 1 or 0
