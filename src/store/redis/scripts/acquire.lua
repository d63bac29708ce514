-- Takes a lock, re-enters it, or grants again what the token already has.
--
-- KEYS   lock    hash of one field: token -> hold count
--        fence   string: the last reserved fencing token; only if some are to be reserved
-- ARGV   token; and from `set`: ttl in ms, the count that is to be, how many fencing tokens to reserve,
--        for how long in ms to remember the last of them (0: for ever), from when the clock has passed it
-- Reply  the first fencing token (0: none)   granted
--        -1 or -2                            nested only: gone, or taken
--        -3 or less                          held: -4 less the holder's time to live in ms, -3 if that never ends
--
-- Twice is harmless: count and time to live are absolute, the second run finds its own token and
-- reads the fencing token that the first has reserved.

local ttl, count, block, retention
-- Why acquires cannot run now.
local unset = 'LEASEHOLD nothing is set'

-- The server's time in microseconds, asked once in a call; and, as text, the last fencing token of a block
-- that begins there: to write a number costs half as much as a command.
local now, newest

-- Sets what acquires have in common: checked once for many.
local function set(new_ttl, new_count, new_block, new_retention)
  whole(new_ttl, 1, LONGEST_TTL)
  whole(new_count, 1, LONGEST_COUNT)
  whole(new_retention, 0, 9007199254740991)
  ttl, count, retention = new_ttl, new_count, new_retention
  block, newest = whole(new_block, 1, 1000000), nil
end

-- A remembered fencing token as a number, if there is one and it can grow.
local function grown(text)
  local last = tonumber(text)
  -- Above 2^53 a number of Lua does not grow by 1 any more. Of one that is none the comparison fails.
  if last and last <= 9007199253000000 then
    return last
  end
end

-- Remembers the last reserved fencing token, and tells which it was before. One that is ahead of the clock, by so
-- many microseconds, is remembered for longer by as much.
local function remember(fence, last, ahead)
  doing = 'SET'
  if retention ~= '0' then
    local kept = retention
    if ahead >= 1000 then
      kept = format('%d', retention + ahead / 1000)
    end
    return call('SET', fence, last, 'PX', kept, 'GET')
  end
  return call('SET', fence, last, 'GET')
end

local function reserve(fence)
  if not now then
    doing = 'TIME'
    local time = call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  newest = newest or format('%d', now + block - 1)
  local text = remember(fence, newest, block)
  if not text then
    return now
  end
  local last = grown(text)
  if not last then
    -- What is not ours stays; all but its time to live.
    call('SET', fence, text)
    error('WRONGTYPE the key of the fencing token holds no number that can grow', 0)
  end
  if last < now then
    return now
  end
  -- The last block was reserved a moment ago, or the clock went back.
  remember(fence, format('%d', last + block), last + block - now)
  return last + 1
end

local function acquire(lock, fence, token)
  if unset then
    error(unset, 0)
  end
  doing = 'PTTL'
  local left = call('PTTL', lock)
  if left == -2 then
    if count ~= '1' then
      return -1
    end
    local first = fence and reserve(fence) or 0
    doing = 'HSET'
    call('HSET', lock, token, count)
    doing = 'PEXPIRE'
    local expires = try('PEXPIRE', lock, ttl)
    if expires ~= 1 then
      -- This very call made the key; it must not stay without a time to live.
      call('DEL', lock)
      error(expires)
    end
    return first
  end

  doing = 'HEXISTS'
  if call('HEXISTS', lock, token) == 0 then
    if count ~= '1' then
      return -2
    end
    return -4 - left
  end
  local first = 0
  if fence then
    doing = 'GET'
    local last = grown(call('GET', fence))
    -- Somebody may have set it to less than a block.
    first = last and last >= block and last - block + 1 or reserve(fence)
  end
  -- Refused when memory is short; the count is only a record, what counts is in the process.
  try('HSET', lock, token, count)
  doing = 'PEXPIRE'
  call('PEXPIRE', lock, ttl)
  return first
end
