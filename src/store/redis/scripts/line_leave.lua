-- Gives up the place of a manager in the line of a lock, or gives it to its next waiter, and wakes the waiters if the lock
-- is free: they may have been refused until the place lapses.
--
-- KEYS   lock, line, lapses: see `line_common.lua`
-- ARGV   holder id, the time in microseconds that the next waiter has waited, the time in ms for which its place is kept (0:
--        there is none)
-- Reply  1 if its manager had a place, 0 if not
--
-- Twice is harmless: the second run finds no place, or one of a later waiter, which it leaves alone, or it gives the place
-- to the next waiter once more.

-- @include common, arguments, publish

local now
-- @include wake_function, line_common

local function run()
  local waited, kept = whole(ARGV[2], 0, 9007199254740991), whole(ARGV[3], 0, LONGEST_TTL)
  local waits = line_of(KEYS[2], KEYS[3], ARGV[1])
  if not waits.leave(now - waited, kept) then
    return 0
  end
  -- Also if a later waiter has the place: it came after waiters who can go now.
  doing = 'EXISTS'
  if call('EXISTS', KEYS[1]) == 0 then
    wake(KEYS[1])
  end
  return 1
end

-- @include protected_call
