-- Wakes the waiters of a lock, with the command of the part before. The body of a function, or the end of a script. The part
-- before defines lock, and braced: whether its name has a brace.
--
-- Reply  the number of subscribers that were woken; -3 if the server refuses the message: this must not turn a
--        completed release into an error

local channel = braced and 'redisson_lock__channel:' .. lock or 'redisson_lock__channel:{' .. lock .. '}'
local listeners = try(publish, channel, '0')
if listeners ~= 0 and type(listeners) == 'table' then
  return -3
end
return listeners
