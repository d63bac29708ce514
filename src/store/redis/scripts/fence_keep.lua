-- Remembers a fencing token for longer, for the scripts of renewals. `fence.lua` does it for those of grants.
--
-- Twice is harmless: the time to live is absolute. It never makes a key, and never shortens its time: a token that is
-- remembered forever, or for longer by another manager, stays so.

-- The server's time in microseconds, read once in a call.
local now

-- Remembers the token under a key for so many ms, and for as much longer as it is ahead of the clock. Text that is not a
-- token is not ours.
local function keep_fence(fence, retention)
  doing = 'GET'
  local last = try('GET', fence)
  last = type(last) == 'string' and tonumber(last)
  if not last or not (last <= GROWS) then
    return
  end
  if not now then
    doing = 'TIME'
    local time = call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  if last >= now + 1000 then
    retention = string.format('%d', retention + (last - now) / 1000)
  end
  doing = 'PEXPIRE'
  call('PEXPIRE', fence, retention, 'GT')
end

