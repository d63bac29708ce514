-- To whom a wake-up goes: in a cluster, where the channel has the lock's slot, to who listens at its servers.
local publish = 'SPUBLISH'

