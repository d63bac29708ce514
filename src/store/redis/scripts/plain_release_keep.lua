-- Releases a lock that is a string and keeps its name closed: a mark takes the place of the holder id. Then it wakes waiters, so
-- that they learn of the mark.
--
-- KEYS   lock    string: the holder id, or `leasehold:done` or `leasehold:kept`, the time in ms for which it is kept, and the
--                holder id that released it, with a space between
-- ARGV   holder id, the mark, the time in ms
-- Reply  as `release.lua`; 0 also if this holder has left that mark already
--
-- Twice is harmless: after the first run the holder id is not there, and is never used again. The mark is left as it is.

-- @include common, arguments, publish, wake_function

local function run()
  -- @include mark
  doing = 'GET'
  local there = call('GET', lock)
  if there ~= holder then
    if there and string.match(there, '^(%S+) %d+ ') == mark and string.match(there, '^%S+ %d+ (.*)$') == holder then
      return 0
    end
    return there and -2 or -1
  end
  doing = 'SET'
  call('SET', lock, mark .. ' ' .. ARGV[3] .. ' ' .. holder, 'PX', ARGV[3])
  return wake(lock)
end

-- @include protected_call
