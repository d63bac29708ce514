-- The function `look` for locks that are strings. It takes the place of `look.lua`.
--
-- Reply  see `acquire.lua`
--
-- Twice is harmless: it writes nothing.

local function look(lock, holder)
  doing = 'GET'
  local there = call('GET', lock)
  if not there or there == holder then
    return not there, nil
  end
  doing = 'PTTL'
  return false, -4 - call('PTTL', lock)
end
