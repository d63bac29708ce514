-- Looks whether a lock is still its holder's, before it is renewed: mine. The part before defines lock and holder.
--
-- Reply  none: the part behind it uses mine
--
-- Twice is harmless: it writes nothing, but for a holder id that it takes out of a read-write lock.

doing = 'HEXISTS'
local mine = call('HEXISTS', lock, holder) == 1
if mine and call('HEXISTS', lock, 'mode') == 1 then
  -- Redisson grants a read-write lock over a lock. It is left to Redisson: with a field of ours in it, a
  -- writer's last unlock would wake no waiter.
  doing = 'HDEL'
  call('HDEL', lock, holder)
  if try('HLEN', lock) == 1 then
    -- It has released its lock since, so none holds what is left.
    try('DEL', lock)
  end
  error(redis.error_reply(READ_WRITE))
end
