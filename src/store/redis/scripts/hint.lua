-- Sends a hint to the inbox of a manager, in a cluster, where it is in a slot of its own.
--
-- KEYS   none that is read or written: the channel, which names the slot
-- ARGV   hint
-- Reply  the number of subscribers that got it
--
-- Twice is harmless: hints may come twice.

return redis.call('SPUBLISH', KEYS[1], ARGV[1])
