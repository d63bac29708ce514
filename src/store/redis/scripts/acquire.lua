-- Acquires a lock, re-enters it, or grants it again to the holder that has it.
--
-- The body of a function of `batch.lua`, and the end of `acquire_alone.lua`. Both define its arguments: lock, a hash of one
-- field: holder id -> hold count; fence, a string: the last reserved fencing token (nil: none is reserved); holder, the
-- id; ttl in ms; count, the new hold count; block, the number of fencing tokens to reserve; retention, the time in ms to
-- remember the last of them (0: forever) once the clock has passed it; up to a hundredth less, and forever if the key has
-- no time to live. Both also define two values that all acquires of a call share: now, the server's time in microseconds; and
-- newest, as text, the last fencing token of a block that begins there.
--
-- Reply  the first fencing token (0: none)   granted; an even one is not ahead of the clock
--        -1 or -2                            nested only: gone, or taken
--        -3 or less                          held: -4 less the holder's time to live in ms, or -3 without one
--        an error                            WRONGTYPE, also for a read-write lock, which can have several holders
--
-- Twice is harmless: count and time to live are absolute. The second run finds its own holder id and reads the fencing
-- token that the first has reserved.

doing = 'PTTL'
local left, first, text, last = call('PTTL', lock), 0, nil, nil
local free = left == -2
if free then
  if count ~= '1' then
    return -1
  end
else
  doing = 'HEXISTS'
  if call('HEXISTS', lock, 'mode') == 1 then
    -- Redisson grants a read-write lock over a lock, which then has other holders, too.
    error(refusal(READ_WRITE))
  end
  if call('HEXISTS', lock, holder) == 0 then
    if count ~= '1' then
      return -2
    end
    return -4 - left
  end
  if fence then
    doing = 'GET'
    last = tonumber(call('GET', fence))
    -- Another client may have set it to less than a block. A comparison with NaN is false.
    if last and last >= block and last <= GROWS then
      first = last - last % 1 - block + 1
    end
  end
end

if fence and first == 0 then
  -- Reserves a block of fencing tokens. If the last of them is ahead of the clock, it is remembered for longer by as many
  -- microseconds. A key without a time to live stays without one: it is the counter of a Redisson `RFencedLock`, which
  -- other clients continue, or that of a manager that remembers forever.
  if not now then
    doing = 'TIME'
    local time = call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  first = now - now % 2
  -- To format a number costs half as much as a command.
  newest = newest or format('%d', first + block - 1)
  local forever = retention == '0'
  if forever then
    doing = 'GET'
    text = call('GET', fence)
  else
    doing = 'SET'
    text = call('SET', fence, newest, 'KEEPTTL', 'GET')
  end
  last = text and tonumber(text)
  if text and not (last and last <= GROWS) then
    -- A value that is not ours stays, and so does its time to live.
    if not forever then
      call('SET', fence, text, 'KEEPTTL')
    end
    error(refusal('WRONGTYPE the key of the fencing token holds no number that can grow'))
  end
  doing = 'SET'
  if last and last >= first then
    -- The last block was reserved a moment ago, or the clock was set back. Whether the number is
    -- odd or even has a meaning, so a fraction is dropped.
    last = last - last % 1
    first = last + 1 + last % 2
    if not forever then
      call('SET', fence, format('%d', first + block - 1), 'KEEPTTL')
    end
  end
  if forever then
    call('SET', fence, format('%d', first + block - 1))
  else
    local kept, span, ahead = retention, retention * 10, first + block - now
    if ahead >= 1000 then
      kept = format('%d', retention + ahead / 1000)
    end
    if not text then
      call('SET', fence, newest, 'PX', kept)
    elseif ahead >= 1000 or last - last % span ~= now - now % span then
      -- Once in a hundredth of the time is enough, since it costs a command. The tokens, which are microseconds, tell when.
      doing = 'PEXPIRE'
      call('PEXPIRE', fence, kept, 'XX')
    end
  end
end

if free then
  doing = 'HSET'
  call('HSET', lock, holder, count)
  doing = 'PEXPIRE'
  local expires = try('PEXPIRE', lock, ttl)
  if expires ~= 1 then
    -- This call made the key; it must not stay without a time to live.
    call('DEL', lock)
    error(expires)
  end
else
  -- Redis refuses it when memory is short. The count is only a record; the process has the true one.
  try('HSET', lock, holder, count)
  doing = 'PEXPIRE'
  call('PEXPIRE', lock, ttl)
end
return first
