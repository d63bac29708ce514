-- Checks arguments, and makes a text of an error: for scripts with many arguments, and those that continue after an error.

local LONGEST_COUNT = 4294967295

-- Returns a whole number from `low` to `high`, or raises an error.
local function whole(text, low, high)
  local number = tonumber(text)
  if not number or number % 1 ~= 0 or number < low or number > high then
    error('LEASEHOLD bad argument ' .. tostring(text), 0)
  end
  return number
end

-- Returns the text of an error that pcall caught: a string, or the result of redis.pcall.
local function message(caught)
  if type(caught) == 'table' then
    caught = caught.err
  end
  local text = tostring(caught)
  if string.find(text, 'user executing the script', 1, true) or string.find(text, 'called from script', 1, true)
    or string.find(text, 'Invalid command', 1, true) then
    text = text .. " ('" .. doing .. "')"
  end
  return text
end
