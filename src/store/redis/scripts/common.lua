-- The common part of the scripts that write. Checks come before the first write, because Redis does not roll back.
-- There are no functions: making one costs as much as half a small command, in every call.

-- Looked up once, because access to a global costs more each time. The rest is looked up where it is used: a lone grant needs
-- little of it.
local call, try = redis.call, redis.pcall

-- The current command: a server does not name the one that it refuses or does not know.
local doing = ''

local LONGEST_TTL = 31536000000
-- Above 2^53 a number of Lua does not grow by 1 any more.
local GROWS = 9007199253000000

-- A hash with the field `mode` is a Redisson `RReadWriteLock`.
local READ_WRITE = 'WRONGTYPE a read-write lock is under the name'
