-- Lowers a hold count, or gives the lock back and wakes waiters.
--
-- KEYS   lock    hash of one field: token -> hold count
-- ARGV   token, the count that is to remain (none: give back)
-- Reply  how many heard of it   done, and given back or not
--        -3                     done, and the server refused to wake who waits
--        -1 or -2               gone, or taken
--
-- Twice is harmless: the count is absolute, and after the last release the token, which is never
-- used again, is not there.

local function release(lock, token, remains)
  if remains then
    whole(remains, 1, LONGEST_COUNT)
    doing = 'HEXISTS'
    if call('HEXISTS', lock, token) == 1 then
      doing = 'HSET'
      call('HSET', lock, token, remains)
      return 0
    end
  else
    -- The key goes with its last field.
    doing = 'HDEL'
    if call('HDEL', lock, token) == 1 then
      return wake(lock)
    end
  end
  doing = 'EXISTS'
  return call('EXISTS', lock) == 0 and -1 or -2
end
