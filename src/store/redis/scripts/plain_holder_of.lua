-- The functions `check_kind` and `holder_of` for locks that are strings. It takes the place of `holder_of.lua`. Of a mark,
-- `holder_of` returns the name.
--
-- Reply  none
--
-- Twice is harmless: it writes nothing.

local function holder_of(lock)
  doing = 'GET'
  local there = call('GET', lock)
  return there and (string.match(there, '^(leasehold:%l+) ') or there) or nil
end

-- GET refuses what is no string.
local check_kind = holder_of
