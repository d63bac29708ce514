-- Takes a lock away from whoever has it, and wakes waiters.
--
-- KEYS   lock
-- ARGV   channel of the wake-up
-- Reply  1 somebody had it, 0 nobody
--
-- Twice is harmless: the second run finds nothing, or does again what was asked for. A key that is
-- not a hash stays: HEXISTS fails on it.

redis.call('HEXISTS', KEYS[1], '')
local deleted = redis.call('DEL', KEYS[1])
wake(ARGV[1])
return { deleted }
