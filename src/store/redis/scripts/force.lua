-- Takes a lock away from its holder, and wakes waiters.
--
-- KEYS   lock
-- ARGV   none
-- Reply  1 if it was held, 0 if not
--
-- Twice is harmless: the second run finds nothing, or does what was requested again. A key that is not a hash stays,
-- because HEXISTS fails on it. A read-write lock stays, too.

local function force(lock)
  doing = 'HEXISTS'
  if call('HEXISTS', lock, 'mode') == 1 then
    error(refusal(READ_WRITE))
  end
  doing = 'DEL'
  local deleted = call('DEL', lock)
  wake(lock)
  return { deleted }
end

local done, reply = pcall(force, KEYS[1])
return done and reply or refusal(message(reply))
