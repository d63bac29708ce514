-- Takes a lock away from whoever has it, and wakes waiters.
--
-- KEYS   lock
-- ARGV   none
-- Reply  1 somebody had it, 0 nobody
--
-- Twice is harmless: the second run finds nothing, or does again what was asked for. A key that is
-- not a hash stays: HEXISTS fails on it. So does a read-write lock.

local function force(lock)
  doing = 'HEXISTS'
  if call('HEXISTS', lock, 'mode') == 1 then
    error(READ_WRITE, 0)
  end
  doing = 'DEL'
  local deleted = call('DEL', lock)
  wake(lock)
  return { deleted }
end

local done, reply = pcall(force, KEYS[1])
return done and reply or redis.error_reply(message(reply))
