-- Wakes the waiters of a read-write lock, with the command of the part before. `rw_common.lua` comes before that.

-- Returns the number of subscribers that were woken; -3 if the server refuses the message. Redisson wakes one waiter of each
-- client by the message 0, and all by 1.
local function wake(lock, message)
  local listeners = try(publish, 'redisson_rwlock:' .. tagged(lock), message)
  if type(listeners) == 'table' then
    return -3
  end
  return listeners
end

