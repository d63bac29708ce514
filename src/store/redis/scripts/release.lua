-- Lowers a hold count, or gives the lock back and wakes waiters.
--
-- KEYS   lock    hash of one field: token -> hold count
-- ARGV   token, the count that is to remain (0: give back), channel of the wake-up
-- Reply  1, how many heard the wake-up (-1: it was refused)   done
--        -1 or -2, 0                                          gone, or taken
--
-- Twice is harmless: the count is absolute, and after the last release the token, which is never
-- used again, is not there.

local function release(lock, token, count, channel)
  count = whole(count, 0, LONGEST_COUNT)
  if call('HEXISTS', lock, token) == 0 then
    return absence(lock), 0
  end
  if count > 0 then
    call('HSET', lock, token, count)
    return 1, 0
  end
  call('DEL', lock)
  return 1, wake(channel)
end
