-- Reserves a block of fencing tokens, if the part before asked for one: fence is its key, and first, which becomes the first
-- token, is still 0. The part before defines them, and block, retention, now, newest, text and last; `acquire.lua` says
-- what they are.
--
-- Reply  none: the part behind it uses first
--
-- Twice is harmless, because the part before asks only for a new grant.

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
  newest = newest or string.format('%d', first + block - 1)
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
    error(redis.error_reply('WRONGTYPE the key of the fencing token holds no number that can grow'))
  end
  doing = 'SET'
  if last and last >= first then
    -- The last block was reserved a moment ago, or the clock was set back. Whether the number is
    -- odd or even has a meaning, so a fraction is dropped.
    last = last - last % 1
    first = last + 1 + last % 2
    if not forever then
      call('SET', fence, string.format('%d', first + block - 1), 'KEEPTTL')
    end
  end
  if forever then
    call('SET', fence, string.format('%d', first + block - 1))
  else
    local kept, ahead = retention, first + block - now
    if ahead >= 1000 then
      kept = string.format('%d', retention + ahead / 1000)
    end
    if not text then
      call('SET', fence, newest, 'PX', kept)
    elseif ahead >= 1000 or last - last % span ~= now - now % span then
      -- Once in a twentieth of the time is enough, since it costs a command. The tokens, which are microseconds, tell when.
      -- Never shorter: another manager may remember for longer.
      doing = 'PEXPIRE'
      call('PEXPIRE', fence, kept, 'GT')
    end
  end
end

