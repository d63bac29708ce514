-- What the other scripts share. Checks come before the first write: Redis does not roll back.
-- Few functions: to make one costs as much as a small command, in every call.

-- Looked up once: a name of the globals costs more each time.
local call, try, find, format = redis.call, redis.pcall, string.find, string.format

-- The command under way: the server does not name the one that it refuses.
local doing = ''

-- A whole number from `low` to `high`, or an error.
local function whole(text, low, high)
  local number = tonumber(text)
  if not number or number % 1 ~= 0 or number < low or number > high then
    error('LEASEHOLD bad argument ' .. tostring(text), 0)
  end
  return number
end

-- The text of what pcall caught: a string, or what redis.pcall returned.
local function message(caught)
  if type(caught) == 'table' then
    caught = caught.err
  end
  local text = tostring(caught)
  if find(text, 'user executing the script', 1, true) then
    text = text .. " ('" .. doing .. "')"
  end
  return text
end

local LONGEST_TTL = 31536000000
local LONGEST_COUNT = 4294967295

-- The field by which a hash is known to be a Redisson `RReadWriteLock` is `mode`.
local READ_WRITE = 'WRONGTYPE a read-write lock is under the name'

-- A remembered fencing token as a number, if there is one and it can grow.
local function grown(text)
  local last = tonumber(text)
  -- Above 2^53 a number of Lua does not grow by 1 any more. Of one that is none the comparison fails.
  if last and last <= 9007199253000000 then
    -- An odd or even number says more than its size, so a fraction goes.
    return last - last % 1
  end
end
