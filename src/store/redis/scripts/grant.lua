-- Writes the hold that `acquire.lua` has granted.
--
-- Reply  the first fencing token
--
-- Twice is harmless: count and time to live are absolute.

if free then
  doing = 'HSET'
  call('HSET', lock, holder, count)
  doing = 'PEXPIRE'
  local expires = try('PEXPIRE', lock, ttl)
  if expires ~= 1 then
    -- This call made the key; it must not stay without a time to live.
    call('DEL', lock)
    error(expires)
  end
else
  -- Redis refuses it when memory is short. The count is only a record; the process has the true one.
  try('HSET', lock, holder, count)
  doing = 'PEXPIRE'
  call('PEXPIRE', lock, ttl)
end
return first
