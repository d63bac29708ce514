-- Releases a lock for a request that is alone in its call. `release.lua` and `wake.lua` follow.
--
-- KEYS   lock    hash of one field: holder id -> hold count
-- ARGV   holder id
-- Reply  the reply of `release.lua`
--
-- Twice is harmless, because `release.lua` is.

local lock, holder = KEYS[1], ARGV[1]
