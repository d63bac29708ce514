-- Takes a lock, re-enters it, or grants again what the token already has.
--
-- KEYS   lock    hash of one field: token -> hold count
--        fence   string: the last reserved fencing token
-- ARGV   token, ttl in ms, the count that is to be, how many fencing tokens to reserve (0: none),
--        for how long in ms to remember the last of them (0: for ever)
-- Reply  1, first fencing token (0: none)     granted
--        0, time to live of the holder in ms  held (-1: the holder's key never expires)
--        -1 or -2, 0                          nested only: gone, or taken
--
-- Twice is harmless: count and time to live are absolute, the second run finds its own token and
-- reads the fencing token that the first has reserved.

-- The last fencing token that was reserved, if any is remembered.
local function remembered(fence)
  local text = call('GET', fence)
  if not text then
    return nil
  end
  local last = tonumber(text)
  -- Above 2^53 a number of Lua does not grow by 1 any more; a number that is not one differs from itself.
  if not last or last ~= last or last > 9007199253000000 then
    error('WRONGTYPE the key of the fencing token holds no number that can grow', 0)
  end
  return math.floor(last)
end

local function reserve(fence, block, retention)
  local time = call('TIME')
  local first = math.max(time[1] * 1000000 + time[2], (remembered(fence) or 0) + 1)
  local value = string.format('%.0f', first + block - 1)
  if retention > 0 then
    call('SET', fence, value, 'PX', string.format('%.0f', retention))
  else
    call('SET', fence, value)
  end
  return first
end

local function acquire(lock, fence, token, ttl, count, block, retention)
  ttl = string.format('%.0f', whole(ttl, 1, LONGEST_TTL))
  count = whole(count, 1, LONGEST_COUNT)
  block = whole(block, 0, 1000000)
  retention = whole(retention, 0, 9007199254740991)

  local left = call('PTTL', lock)
  if left ~= -2 then
    if call('HEXISTS', lock, token) == 0 then
      if count > 1 then
        return -2, 0
      end
      return 0, left
    end
    local first = 0
    if block > 0 then
      local last = remembered(fence)
      first = last and last - block + 1 or reserve(fence, block, retention)
    end
    -- Refused when memory is short; the count is only a record, what counts is in the process.
    redis.pcall('HSET', lock, token, count)
    call('PEXPIRE', lock, ttl)
    return 1, first
  end

  if count > 1 then
    return -1, 0
  end
  local first = 0
  if block > 0 then
    first = reserve(fence, block, retention)
  end
  call('HSET', lock, token, count)
  local expires = redis.pcall('PEXPIRE', lock, ttl)
  if expires ~= 1 then
    -- This very call made the key; it must not stay without a time to live.
    call('DEL', lock)
    doing = 'PEXPIRE'
    error(expires)
  end
  return 1, first
end
