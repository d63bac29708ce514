-- Sends wake-ups to the subscribers of the channel's slot, in a cluster, where the channel is in the slot of the lock.
local publish = 'SPUBLISH'

