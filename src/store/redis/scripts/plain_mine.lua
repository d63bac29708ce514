-- Looks whether a lock that is a string is still its holder's, before it is renewed: mine. It takes the place of `mine.lua`.
--
-- Reply  none: the part behind it uses mine
--
-- Twice is harmless: it writes nothing.

doing = 'GET'
local mine = call('GET', lock) == holder
