-- What the other scripts share. Checks come before the first write: Redis does not roll back.

-- A whole number from `low` to `high`, or an error.
local function whole(text, low, high)
  local number = tonumber(text)
  if not number or number ~= math.floor(number) or number < low or number > high then
    error('LEASEHOLD bad argument ' .. tostring(text), 0)
  end
  return number
end

-- The text of what pcall caught: a table since Redis 7, a string before. The line tells which command failed.
local function message(caught)
  if type(caught) == 'table' then
    return (caught.err or 'LEASEHOLD unknown error') .. ' on @user_script:' .. (caught.line or '?')
  end
  return tostring(caught)
end

-- Why a token is not there: -1 nothing is, -2 someone else.
local function absence(lock)
  if redis.call('EXISTS', lock) == 0 then
    return -1
  end
  return -2
end

-- Wakes waiters. A refused PUBLISH must not turn a done release into an error: -1 then.
local function wake(channel)
  local listeners = redis.pcall('PUBLISH', channel, '0')
  if type(listeners) == 'table' then
    return -1
  end
  return listeners
end

local LONGEST_TTL = 31536000000
local LONGEST_COUNT = 4294967295
