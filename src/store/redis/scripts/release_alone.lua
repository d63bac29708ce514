-- Releases a lock for a request that is alone in its call. `release.lua` and `wake.lua` follow.
--
-- KEYS   lock    hash of one field: token -> hold count
-- ARGV   token
-- Reply  the reply of `release.lua`
--
-- Twice is harmless, because `release.lua` is.

local lock, token = KEYS[1], ARGV[1]
