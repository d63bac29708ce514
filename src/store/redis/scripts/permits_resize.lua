-- Sets the number of permits of a semaphore, and wakes waiters. `permits_common.lua` and `permits_wake.lua` come before.
--
-- KEYS   free, out, sizes: see `permits_common.lua`
-- ARGV   the size, the time in ms to keep an idle semaphore (0: forever)
-- Reply  the size before; -1: there was no semaphore
--
-- Twice is harmless: the second run finds the size as it is to be.

local free, out, sizes = KEYS[1], KEYS[2], KEYS[3]
local size, kept = whole(ARGV[1], 1, LONGEST_COUNT), whole(ARGV[2], 0, 9007199254740991)
local left, now = free_of(free), clock()
doing = 'ZRANGEBYSCORE'
local back = remove(out, call('ZRANGEBYSCORE', out, '-inf', now, 'LIMIT', 0, 1000))
doing = 'ZCARD'
local used = call('ZCARD', out)
local before = left and left + back + used or -1
if before < 0 then
  doing = 'DEL'
  call('DEL', sizes)
elseif before ~= size then
  doing = 'HSET'
  call('HSET', sizes, format('%d', before), '1')
  call('HDEL', sizes, format('%d', size))
  if kept > 0 then
    doing = 'PEXPIRE'
    call('PEXPIRE', sizes, format('%d', kept))
  end
end
doing = 'SET'
if left then
  call('SET', free, format('%d', size - used), 'KEEPTTL')
  keep(free, kept)
elseif kept > 0 then
  call('SET', free, format('%d', size - used), 'PX', format('%d', kept))
else
  call('SET', free, format('%d', size - used))
end
wake(free, size - used)
return before
