-- Acquires a lock that is a string, for a request that is alone in its call. Without fencing tokens a free name costs one
-- command, as if no script were around it; the server checks its arguments.
--
-- KEYS   lock    string: holder id
--        fence   string: the last reserved fencing token; only if a block is requested
-- ARGV   holder id, ttl in ms; if there is a fence: block and retention
-- Reply  the reply of `acquire.lua`
--
-- Twice is harmless, because `plain_acquire.lua` is: NX leaves what the first run has written.

if not KEYS[2] and redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return 0
end

-- @include common, acquire_one
