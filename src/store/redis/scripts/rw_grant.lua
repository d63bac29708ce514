-- Writes the hold that `rw_acquire.lua` has granted. `rw_wake.lua` comes before.
--
-- Reply  the first fencing token
--
-- Twice is harmless: the time to live is absolute, and the hold count of a holder that has the lock stays.

-- Ends the place of its waiter. When the hash has its time to live, so that a user without the right leaves none forever.
local function leave()
  if fresh and leaves then
    doing = 'DEL'
    call('DEL', own_side)
  end
end

if writes then
  if fresh then
    doing = 'HSET'
    call('HSET', lock, 'mode', 'write', written, '1')
    if reads then
      doing = 'HDEL'
      call('HDEL', lock, holder)
      doing = 'DEL'
      call('DEL', timeout)
    end
  end
  doing = 'PEXPIRE'
  local expires = try('PEXPIRE', lock, ttl)
  if expires ~= 1 then
    if fresh and not reads then
      call('DEL', lock)
    end
    error(expires)
  end
  leave()
  return first
end

if wrote and not changes then
  -- A late copy of the request of a reader that is the writer now.
  doing = 'PEXPIRE'
  call('PEXPIRE', lock, ttl)
  return first
end
-- A request without a fencing token leaves the one that the reader has.
local has = first == 0 and not fresh
if has then
  doing = 'PEXPIRE'
  has = call('PEXPIRE', timeout, ttl) == 1
end
if not has then
  doing = 'SET'
  call('SET', timeout, first > 0 and string.format('%d', first) or '1', 'PX', ttl)
end
if fresh then
  doing = 'HSET'
  call('HSET', lock, 'mode', 'read', holder, '1')
  if wrote then
    doing = 'HDEL'
    call('HDEL', lock, written)
  end
end
doing = 'PEXPIRE'
-- Other readers may have more time left. A hash without a time to live gets one.
local expires = try('PEXPIRE', lock, string.format('%d', math.max(left, tonumber(ttl))))
if expires ~= 1 then
  if fresh then
    call('DEL', timeout)
    call('HDEL', lock, holder)
    if not mode then
      call('DEL', lock)
    end
  end
  error(expires)
end
leave()
if wrote then
  wake(lock, '1')
end
return first
