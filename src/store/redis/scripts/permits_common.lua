-- The common part of the scripts of semaphores, in the layout of Redisson's `RPermitExpirableSemaphore`.
--
-- free    string: the number of free permits
-- out     sorted set: permit id, 16 bytes -> the server's time in ms at which it expires
-- sizes   hash: its fields are the sizes that the semaphore had before a resize; not known to Redisson
--
-- A holder's ids are 14 bytes, which it sends as 28 hexadecimal digits, and the number of the permit in 2 bytes. The size of
-- a semaphore is the number of free permits and of those that are out, so it is kept nowhere else.

-- Returns the ids of a holder's permits.
local function ids_of(hex, take)
  local head = string.gsub(hex, '%x%x', function(byte)
    return string.char(tonumber(byte, 16))
  end)
  local ids = {}
  for i = 1, take do
    ids[i] = head .. string.char(math.floor(i / 256), i % 256)
  end
  return ids
end

-- Returns the number of free permits; nil if there is no semaphore.
local function free_of(free)
  doing = 'GET'
  local text = call('GET', free)
  if not text then
    return nil
  end
  local number = tonumber(text)
  if not number or number % 1 ~= 0 then
    error(refusal('WRONGTYPE the value under the name is no number of permits'))
  end
  return number
end

-- Returns the server's time in ms.
local function clock()
  doing = 'TIME'
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Returns how many of these ids are out.
local function count_out(out, ids)
  doing = 'ZSCORE'
  local there = 0
  for _, id in ipairs(ids) do
    if call('ZSCORE', out, id) then
      there = there + 1
    end
  end
  return there
end

-- Removes these ids, and returns how many were out. Not all at once: a call takes some thousand arguments.
local function remove(out, ids)
  doing = 'ZREM'
  local removed = 0
  for _, id in ipairs(ids) do
    removed = removed + call('ZREM', out, id)
  end
  return removed
end

-- Keeps the keys for at least so many ms. One that is kept forever stays so.
local function keep(key, ms)
  doing = 'PTTL'
  local left = call('PTTL', key)
  if left >= 0 and left < ms then
    doing = 'PEXPIRE'
    call('PEXPIRE', key, format('%d', ms))
  end
end
