-- Wakes the waiters of a semaphore, with the command of the part before.

-- Returns the number of subscribers that were woken; -3 if the server refuses the message. Redisson reads the message as a
-- number of permits, and fails on one that is negative.
local function wake(free, permits)
  if permits <= 0 then
    return 0
  end
  local channel = 'redisson_sc:'
  if find(free, '{', 1, true) then
    channel = channel .. free
  else
    channel = channel .. '{' .. free .. '}'
  end
  local listeners = try(publish, channel, format('%d', permits))
  if type(listeners) == 'table' then
    return -3
  end
  return listeners
end

-- Gives a holder's permits back, of which so many are out, and wakes waiters. `left` are free; nil if the counter is gone, which
-- the next acquire makes again.
local function give_back(free, out, left, ids, there)
  -- Changes nothing.
  doing = 'ZREM'
  call('ZREM', out, '')
  if left then
    doing = 'SET'
    call('SET', free, format('%d', left + there), 'KEEPTTL')
  end
  remove(out, ids)
  return left and wake(free, left + there) or 0
end

