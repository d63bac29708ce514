-- Sets the number of permits of a semaphore, and wakes waiters.
--
-- KEYS   free, out, sizes: see `permits_common.lua`
-- ARGV   the size, the time in ms to keep an idle semaphore (0: forever)
-- Reply  the size before; -1: there was no semaphore
--
-- Twice is harmless: the second run finds the size as it is to be.

-- @include common, arguments, publish, permits_common, permits_wake

local function run()
  local free, out, sizes = KEYS[1], KEYS[2], KEYS[3]
  local size, kept = whole(ARGV[1], 1, LONGEST_COUNT), whole(ARGV[2], 0, FOREVER)
  local left, now = free_of(free), clock()
  doing = 'ZCARD'
  local used = call('ZCARD', out)
  doing = 'ZCOUNT'
  local expired = call('ZCOUNT', out, '-inf', now)
  local before = left and left + used or -1
  local ms = kept == 0 and FOREVER or kept

  -- Changes nothing.
  doing = 'SET'
  call('SET', free, string.format('%d', left or 0), 'XX', 'KEEPTTL')
  local lives = keep(sizes, ms)
  if lives == -2 and kept > 0 then
    doing, lives = 'PEXPIRE', ms
    call('PEXPIRE', sizes, string.format('%d', ms))
  end
  local lasts = left and keep(free, ms) or ms
  keep_out(out, lasts)

  if not left then
    doing = 'DEL'
    call('DEL', sizes)
  elseif before ~= size then
    doing = 'HSET'
    call('HSET', sizes, string.format('%d', before), '1')
    if lives >= 0 then
      doing = 'PEXPIRE'
      call('PEXPIRE', sizes, string.format('%d', lives))
    end
  end
  doing = 'SET'
  local rest = string.format('%d', size - used)
  if left then
    call('SET', free, rest, 'KEEPTTL')
    if lasts >= 0 then
      -- Again, as in `release_keep.lua`.
      doing = 'PEXPIRE'
      call('PEXPIRE', free, string.format('%d', lasts))
    end
  elseif kept > 0 then
    call('SET', free, rest, 'PX', string.format('%d', kept))
  else
    call('SET', free, rest)
  end
  wake(free, size - used + expired)
  return before
end

-- @include protected_call
