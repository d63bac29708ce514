-- The function `look`, which returns whether a lock can be granted because it is free, and otherwise the reply, if it is another
-- holder's.
--
-- Reply  see `acquire.lua`
--
-- Twice is harmless: it writes nothing.

local function look(lock, holder)
  doing = 'PTTL'
  local left = call('PTTL', lock)
  if left == -2 then
    return true, nil
  end
  doing = 'HEXISTS'
  if call('HEXISTS', lock, 'mode') == 1 then
    error(redis.error_reply(READ_WRITE))
  end
  if call('HEXISTS', lock, holder) == 1 then
    return false, nil
  end
  -- As in `acquire.lua`.
  local field = try('HGETALL', lock)[1]
  if field and string.find(field, '^%x+%-%x+%-8%x+%-%x+%-%x+:') then
    return false, -2251799813685252 - left
  end
  return false, -4 - left
end
