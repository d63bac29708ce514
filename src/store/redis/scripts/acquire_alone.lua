-- Acquires a lock for a request that is alone in its call: the machinery of `batch.lua` costs more than the commands.
--
-- KEYS   lock    hash of one field: holder id -> hold count
--        fence   string: the last reserved fencing token; only if a block is requested
-- ARGV   holder id, ttl in ms; if there is a fence: block and retention
-- Reply  the reply of `acquire.lua`
--
-- Twice is harmless, because `acquire.lua` is.

-- @include common, acquire_one
