-- Sends wake-ups to all subscribers.
local publish = 'PUBLISH'

