-- The function `holds` for locks that are strings. It takes the place of `holds.lua`.
--
-- Reply  none
--
-- Twice is harmless: it writes nothing.

local function holds(lock, holder)
  doing = 'GET'
  return call('GET', lock) == holder
end
