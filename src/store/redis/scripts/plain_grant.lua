-- Writes the hold that `plain_acquire.lua` has granted. Nothing comes between the two, so the name is free or the holder's own.
--
-- Reply  the first fencing token
--
-- Twice is harmless: the holder id and the time to live are absolute.

doing = 'SET'
call('SET', lock, holder, 'PX', ttl)
return first
