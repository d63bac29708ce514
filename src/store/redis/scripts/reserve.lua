-- Reserves the fencing tokens of grants, each from a first one that the caller names, and reports the age of the server: the
-- second round of a quorum. `uptime.lua` reports the age alone.
--
-- KEYS   for each item: lock, and its fence
-- ARGV   for each item: the field of the holder in the lock, the first fencing token, block, retention
-- Reply  seconds since the start; the server's run id, or an empty string if it has none; for each item: 0 reserved; above 0
--        the last token, which is as large as the first one or larger; -1 gone; -2 taken; or the text of an error
--
-- Twice is harmless: the token must be larger than the last one, so the second run changes nothing.

-- @include common, arguments, holds

local function reserve(lock, fence, field, first, block, retention)
  first = whole(first, 1, GROWS)
  local newest = string.format('%d', first + whole(block, 1, 1000000) - 1)
  whole(retention, 0, 9007199254740991)
  if not holds(lock, field) then
    doing = 'EXISTS'
    return call('EXISTS', lock) == 0 and -1 or -2
  end
  doing = 'GET'
  local text = call('GET', fence)
  local last = text and tonumber(text)
  if text and not (last and last <= GROWS) then
    error(redis.error_reply('WRONGTYPE the key of the fencing token holds no number that can grow'))
  end
  if last and last >= first then
    -- Two grants with one token would be granted it by two majorities, which have a node in common: this one refuses it.
    return last - last % 1
  end
  doing = 'SET'
  if retention == '0' then
    call('SET', fence, newest)
    return 0
  end
  -- Remembered for longer by as much as it is ahead of the clock, and never shorter than it was.
  doing = 'TIME'
  local time = call('TIME')
  local ahead = newest - time[1] * 1000000 - time[2]
  local kept = ahead >= 1000 and string.format('%d', retention + ahead / 1000) or retention
  doing = 'SET'
  if text then
    call('SET', fence, newest, 'KEEPTTL')
    doing = 'PEXPIRE'
    call('PEXPIRE', fence, kept, 'GT')
  else
    call('SET', fence, newest, 'PX', kept)
  end
  return 0
end

local verdicts = {}
for item = 1, #KEYS / 2 do
  local arg = item * 4 - 3
  local done, verdict = pcall(reserve, KEYS[item * 2 - 1], KEYS[item * 2], unpack(ARGV, arg, arg + 3))
  verdicts[item] = done and verdict or message(verdict)
end
-- After the items: an age that was measured before could be that of a server which has forgotten them since.
local info = redis.call('INFO', 'server')
local up = string.match(info, 'uptime_in_seconds:(%d+)')
return { tonumber(up), string.match(info, 'run_id:(%x+)') or '', unpack(verdicts) }
