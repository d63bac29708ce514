-- The function `record`, which sets the hold count of a lock.
--
-- Reply  0 if the holder has the lock; -1 gone, -2 taken
--
-- Twice is harmless: the count is absolute.

local function record(lock, holder, count)
  whole(count, 1, LONGEST_COUNT)
  doing = 'HEXISTS'
  if call('HEXISTS', lock, holder) == 0 then
    doing = 'EXISTS'
    return call('EXISTS', lock) == 0 and -1 or -2
  end
  doing = 'HSET'
  call('HSET', lock, holder, count)
  return 0
end
