-- Gives up the place of a manager in the line of a lock, and wakes the other waiters if the lock is free: they may have been
-- refused until the place lapses. `line_common.lua` is the function `line_of`.
--
-- KEYS   lock, line, lapses: see `line_common.lua`
-- ARGV   holder id
-- Reply  1 if its manager had a place, 0 if not
--
-- Twice is harmless: the second run finds no place, or one of a later waiter, which it leaves alone.

if not line_of(KEYS[2], KEYS[3], ARGV[1]).leave() then
  return 0
end
-- Also if a later waiter has the place: it came after waiters who can go now.
doing = 'EXISTS'
if call('EXISTS', KEYS[1]) == 0 then
  wake(KEYS[1])
end
return 1
