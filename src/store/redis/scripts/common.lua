-- What the other scripts share. Checks come before the first write: Redis does not roll back.

-- A whole number from `low` to `high`, or an error.
local function whole(text, low, high)
  local number = tonumber(text)
  if not number or number ~= math.floor(number) or number < low or number > high then
    error('LEASEHOLD bad argument ' .. tostring(text), 0)
  end
  return number
end

-- redis.call, remembering the command: the server does not name the one that it refuses.
local doing = ''
local function call(command, ...)
  doing = command
  return redis.call(command, ...)
end

-- The text of what pcall caught: a string, or what redis.pcall returned.
local function message(caught)
  if type(caught) == 'table' then
    caught = caught.err
  end
  local text = tostring(caught)
  if string.find(text, 'user executing the script', 1, true) then
    text = text .. " ('" .. doing .. "')"
  end
  return text
end

-- Why a token is not there: -1 nothing is, -2 someone else.
local function absence(lock)
  if call('EXISTS', lock) == 0 then
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
