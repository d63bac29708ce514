-- The function `record` for locks that are strings. They have no hold count, so it only looks who has the lock.
--
-- Reply  0 if the holder has the lock; -1 gone, -2 taken
--
-- Twice is harmless: it writes nothing.

local function record(lock, holder, count)
  whole(count, 1, LONGEST_COUNT)
  doing = 'GET'
  local there = call('GET', lock)
  return there == holder and 0 or there and -2 or -1
end
