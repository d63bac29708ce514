-- Releases a lock for a request that is alone in its call.
--
-- KEYS   lock    hash of one field: holder id -> hold count
-- ARGV   holder id; 1 if the name has a brace, which takes as long to find as half a command
-- Reply  the reply of `release.lua`
--
-- Twice is harmless, because `release.lua` is.

-- @include common, publish

local lock, holder, braced = KEYS[1], ARGV[1], ARGV[2]

-- @include release, wake
