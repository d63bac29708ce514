-- Takes a lock, re-enters it, or grants again what the token already has.
--
-- KEYS   lock    hash of one field: token -> hold count
--        fence   string: the last reserved fencing token; only if some are to be reserved
-- ARGV   token; and from `set`: ttl in ms, the count that is to be, how many fencing tokens to reserve,
--        for how long in ms to remember the last of them (0: for ever), from when the clock has passed it; a
--        hundredth less, and for ever where the key has no time to live
-- Reply  the first fencing token (0: none)   granted; an even one is not ahead of the clock
--        -1 or -2                            nested only: gone, or taken
--        -3 or less                          held: -4 less the holder's time to live in ms, -3 if that never ends
--        an error                            WRONGTYPE, also for a read-write lock, whose holders are not alone
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

-- Reserves a block of fencing tokens, and tells the first. The last of them is remembered for `retention`; one that is
-- ahead of the clock, by so many microseconds, for longer by as much. A key without a time to live keeps none: the
-- counter of a Redisson `RFencedLock`, which others go on from, or what a manager remembers for ever.
local function reserve(fence)
  if not now then
    doing = 'TIME'
    local time = call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  local even = now - now % 2
  newest = newest or format('%d', even + block - 1)
  local forever, text = retention == '0', nil
  if forever then
    doing = 'GET'
    text = call('GET', fence)
  else
    doing = 'SET'
    text = call('SET', fence, newest, 'KEEPTTL', 'GET')
  end
  local last = grown(text)
  if text and not last then
    -- What is not ours stays, and so does its time to live.
    if not forever then
      call('SET', fence, text, 'KEEPTTL')
    end
    error('WRONGTYPE the key of the fencing token holds no number that can grow', 0)
  end
  doing = 'SET'
  local first = even
  if last and last >= even then
    -- The last block was reserved a moment ago, or the clock went back.
    first = last + 1 + last % 2
    if not forever then
      call('SET', fence, format('%d', first + block - 1), 'KEEPTTL')
    end
  end
  if forever then
    call('SET', fence, format('%d', first + block - 1))
    return first
  end
  local kept, span, ahead = retention, retention * 10, first + block - now
  if ahead >= 1000 then
    kept = format('%d', retention + ahead / 1000)
  end
  if not text then
    call('SET', fence, newest, 'PX', kept)
  elseif ahead >= 1000 or last - last % span ~= now - now % span then
    -- Once in a hundredth of the time will do, by the tokens, which are microseconds: it costs a command.
    doing = 'PEXPIRE'
    call('PEXPIRE', fence, kept, 'XX')
  end
  return first
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
  if call('HEXISTS', lock, 'mode') == 1 then
    -- Redisson grants one over a lock, which is not ours alone any more.
    error(READ_WRITE, 0)
  end
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
