-- Takes a lock away from whoever has it, and wakes waiters.
--
-- KEYS   lock
-- ARGV   none
-- Reply  1 somebody had it, 0 nobody
--
-- Twice is harmless: the second run finds nothing, or does again what was asked for. A key that is
-- not a hash stays: HEXISTS fails on it.

call('HEXISTS', KEYS[1], '')
local deleted = call('DEL', KEYS[1])
wake(KEYS[1])
return { deleted }
