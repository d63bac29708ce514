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

-- Gives permits back, and wakes waiters. A counter that is gone is made again by the next acquire.
local function give_back(free, permits)
  doing = 'EXISTS'
  if permits == 0 or call('EXISTS', free) == 0 then
    return 0
  end
  doing = 'INCRBY'
  return wake(free, call('INCRBY', free, permits))
end

