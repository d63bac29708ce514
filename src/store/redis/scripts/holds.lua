-- The function `holds`, which returns whether a holder has a lock.
--
-- Reply  none
--
-- Twice is harmless: it writes nothing.

local function holds(lock, holder)
  doing = 'HEXISTS'
  return call('HEXISTS', lock, holder) == 1
end
