-- Gives the permits of a holder back, and wakes waiters. `permits_common.lua` and `permits_wake.lua` come before.
--
-- KEYS   free, out: see `permits_common.lua`
-- ARGV   the number of permits, the ids
-- Reply  the number of subscribers that were woken   released
--        -3                                          released, but the server refused to wake waiters
--        -1                                          none of them was out
--
-- Twice is harmless: the second run finds none of them.

local free, out, ids = KEYS[1], KEYS[2], ids_of(ARGV[2], whole(ARGV[1], 1, 65535))
local left, there = free_of(free), look_up(out, ids, 0)
if there == 0 then
  return -1
end
return give_back(free, out, left, ids, there)
