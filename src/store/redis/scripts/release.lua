-- Releases a lock. `wake.lua` follows and wakes waiters. The body of `release_function.lua`, and the end of
-- `release_alone.lua`. Both define its arguments: lock, a hash of one field: holder id -> hold count; holder, the id.
--
-- Reply  the number of subscribers that were woken   released
--        -3                     released, but the server refused to wake waiters
--        -1 or -2               gone, or taken: Redisson grants a read-write lock over a lock
--
-- Twice is harmless: after the first run the holder id is not there, and is never used again.

-- The key goes with its last field.
doing = 'HDEL'
if call('HDEL', lock, holder) == 0 then
  doing = 'EXISTS'
  return call('EXISTS', lock) == 0 and -1 or -2
end
-- What fails here must not turn a completed release into an error.
if try('EXISTS', lock) == 1 and try('HEXISTS', lock, 'mode') == 1 then
  if try('HLEN', lock) == 1 then
    -- Redisson has released its lock since, so none holds what is left.
    try('DEL', lock)
  end
  return -2
end
