-- Takes all permits of a semaphore away, forgets its size, and wakes waiters.
--
-- KEYS   free, out, sizes: see `permits_common.lua`
-- ARGV   none
-- Reply  1 if permits were out, 0 if not
--
-- Twice is harmless: the second run finds nothing, or does what was requested again.

-- @include common, arguments, publish, permits_common, permits_wake

local function run()
  local free, out = KEYS[1], KEYS[2]
  local left = free_of(free)
  doing = 'ZCARD'
  local used = call('ZCARD', out)
  doing = 'DEL'
  call('DEL', free, out, KEYS[3])
  wake(free, (left or 0) + used)
  return used > 0 and 1 or 0
end

-- @include protected_call
