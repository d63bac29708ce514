-- Writes the hold that `acquire.lua` has granted.
--
-- Reply  the first fencing token
--
-- Twice is harmless: the time to live is absolute, and the hold count of a holder that has the lock stays.

if free then
  doing = 'HSET'
  call('HSET', lock, holder, '1')
  doing = 'PEXPIRE'
  local expires = try('PEXPIRE', lock, ttl)
  if expires ~= 1 then
    -- This call made the key; it must not stay without a time to live.
    call('DEL', lock)
    error(expires)
  end
else
  doing = 'PEXPIRE'
  call('PEXPIRE', lock, ttl)
end
return first
