-- Gives the permits of a holder back, and wakes waiters. `permits_common.lua` and `permits_wake.lua` come before.
--
-- KEYS   free, out: see `permits_common.lua`. Or out alone, if a cluster is moving the slot and the counter is elsewhere: the
--        permits count as expired from then on, so that the next acquire that needs them gives them back
-- ARGV   the number of permits, the ids
-- Reply  the number of subscribers that were woken   released
--        -3                                          released, but the server refused to wake waiters
--        -1                                          none of them was out
--
-- Twice is harmless: the second run finds none of them, or those that have expired.

local free, out, ids = KEYS[1], KEYS[2] or KEYS[1], ids_of(ARGV[2], whole(ARGV[1], 1, 65535))
local together = free ~= out
local left, there = together and free_of(free) or nil, look_up(out, ids, 0)
if there == 0 then
  return -1
end
if not together then
  -- Changes nothing.
  doing = 'ZREM'
  call('ZREM', out, '')
  put(out, ids, 0, 'XX')
  return wake(string.gsub(out, ':timeout$', ''), there)
end
return give_back(free, out, left, ids, there)
