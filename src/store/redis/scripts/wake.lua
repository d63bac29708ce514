-- Wakes who waits for a lock, by the verb of the part before. A refused message must not turn a done
-- release into an error: -3 then.
local function wake(lock)
  local channel = 'redisson_lock__channel:'
  if find(lock, '{', 1, true) then
    channel = channel .. lock
  else
    channel = channel .. '{' .. lock .. '}'
  end
  local listeners = try(publish, channel, '0')
  if type(listeners) == 'table' then
    return -3
  end
  return listeners
end

