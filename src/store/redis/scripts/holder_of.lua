-- The function `holder_of`, which returns the holder id or the mark under a name, nil if it is free. A read-write lock is an error.
--
-- Reply  none
--
-- Twice is harmless: it writes nothing.

local function holder_of(lock)
  doing = 'HEXISTS'
  if call('HEXISTS', lock, 'mode') == 1 then
    error(redis.error_reply(READ_WRITE))
  end
  doing = 'HGETALL'
  return call('HGETALL', lock)[1]
end
