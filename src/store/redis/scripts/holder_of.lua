-- The functions `check_kind`, which raises an error for a read-write lock, and `holder_of`, which returns the holder id or the mark
-- under a name; nil if it is free.
--
-- Reply  none
--
-- Twice is harmless: it writes nothing.

local function check_kind(lock)
  doing = 'HEXISTS'
  if call('HEXISTS', lock, 'mode') == 1 then
    error(redis.error_reply(READ_WRITE))
  end
end

local function holder_of(lock)
  doing = 'HGETALL'
  return call('HGETALL', lock)[1]
end
