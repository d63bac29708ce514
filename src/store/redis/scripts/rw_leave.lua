-- Gives up the place of a waiter for a read-write lock, and wakes the other side if the lock may be granted to it.
--
-- KEYS   lock
--        own side   see `rw_acquire.lua`
-- ARGV   holder id, read or write
-- Reply  1 if its manager had a place, 0 if not
--
-- Twice is harmless: the second run finds no place, or one of a later waiter, which it leaves alone.

-- @include common, arguments, publish, rw_common, rw_wake

local function run()
  local lock, side, holder, writes = KEYS[1], KEYS[2], ARGV[1], ARGV[2] == 'write'
  local manager, number = string.match(holder, '^(.*):(%d+)')
  doing = 'GET'
  local by, latest = string.match(call('GET', side) or '', '^%-?%d+ (.+):(%d+)$')
  if not by or by ~= manager then
    return 0
  end
  if tonumber(latest) <= tonumber(number) then
    doing = 'DEL'
    call('DEL', side)
  end
  -- Also if a later waiter has the place: it came after waiters who can go now.
  local mode = mode_of(lock)
  if not mode or writes and mode == 'read' then
    -- Redisson's clients do not wait for a place.
    wake(lock, '0')
  end
  return 1
end

-- @include protected_call
