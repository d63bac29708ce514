-- Wakes the waiters of a semaphore, with the command of the part before.

-- Returns the number of subscribers that were woken; -3 if the server refuses the message. Redisson reads the message as a
-- number of permits, and fails on one that is negative.
local function wake(free, permits)
  if permits <= 0 then
    return 0
  end
  local channel = 'redisson_sc:'
  if string.find(free, '{', 1, true) then
    channel = channel .. free
  else
    channel = channel .. '{' .. free .. '}'
  end
  local listeners = try(publish, channel, string.format('%d', permits))
  if type(listeners) == 'table' then
    return -3
  end
  return listeners
end

-- Gives a holder's permits back, and wakes waiters; -1 if none of them was out. `left` are free; nil if the counter is gone,
-- which the next acquire makes again.
local function release_permits(free, out, left, ids)
  if left then
    need('SET', free, string.format('%d', left), 'XX', 'KEEPTTL')
  end
  doing = 'ZREM'
  local there = call('ZREM', out, unpack(ids))
  if there == 0 or not left then
    return there == 0 and -1 or 0
  end
  left = left + there
  doing = 'SET'
  call('SET', free, string.format('%d', left), 'KEEPTTL')
  if left <= 0 then
    -- After a resize. The next acquire takes those that have expired.
    -- What fails here must not turn a completed release into an error.
    left = left + (tonumber(try('ZCOUNT', out, '-inf', clock())) or 0)
  end
  return wake(free, left)
end
