-- Wakes the waiters of a lock, with the command of the part before. The body of a function, or the end of a script.
--
-- Reply  the number of subscribers that were woken; -3 if the server refuses the message: this must not turn a
--        completed release into an error

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
