-- Releases a lock and keeps its name closed: a mark takes the place of the holder id. Then it wakes waiters, so that they
-- learn of the mark. The body of a function.
--
-- KEYS   lock    hash of one field: holder id -> hold count, or `leasehold:done` or `leasehold:kept` -> the time in ms for
--                which it is kept, a space, and the holder id that released it
-- ARGV   holder id, the field of the mark, the time in ms
-- Reply  as `release.lua`; 0 also if this holder has left that mark already
--
-- Twice is harmless: after the first run the holder id is not there, and is never used again. The mark is left as it is.

-- @include common, arguments, publish, wake_function

local function run()
  -- @include mark

  doing = 'HEXISTS'
  if call('HEXISTS', lock, holder) == 0 then
    -- Not HGET, which plain locks do not need.
    doing = 'HGETALL'
    local there = call('HGETALL', lock)
    if there[1] == mark and string.match(there[2], '^%d+ (.*)$') == holder then
      return 0
    end
    return there[1] and -2 or -1
  end
  if call('HEXISTS', lock, 'mode') == 1 then
    -- Redisson grants a read-write lock over a lock. It is left to Redisson, as in `renew.lua`.
    doing = 'HDEL'
    call('HDEL', lock, holder)
    if try('HLEN', lock) == 1 then
      -- It has released its lock since, so none holds what is left.
      try('DEL', lock)
    end
    return -2
  end
  -- The key has a time to live all the time. PEXPIRE comes first: a full memory refuses HSET only as the first command that
  -- writes. It comes again because it takes the key away if the time is over when it ends, and then HSET makes a key that stays:
  -- with 1 ms, one of 8 000 did on Redis 7.0.
  doing = 'PEXPIRE'
  call('PEXPIRE', lock, ARGV[3])
  doing = 'HSET'
  call('HSET', lock, mark, ARGV[3] .. ' ' .. holder)
  doing = 'HDEL'
  call('HDEL', lock, holder)
  doing = 'PEXPIRE'
  call('PEXPIRE', lock, ARGV[3])
  return wake(lock)
end

-- @include protected_call
