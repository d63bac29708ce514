-- To whom a wake-up goes: to all who listen.
local publish = 'PUBLISH'

