-- Releases a lock that is a string: it compares and deletes. It takes the place of `release.lua`, with the same arguments.
--
-- Reply  see `release.lua`
--
-- Twice is harmless: after the first run the holder id is not there, and is never used again.

doing = 'GET'
local there = call('GET', lock)
if there ~= holder then
  return there and -2 or -1
end
doing = 'DEL'
call('DEL', lock)
