-- Acquires permits of a semaphore, or grants them again to the holder that has them.
--
-- KEYS   free, out, sizes: see `permits_common.lua`
-- ARGV   the size, the number of permits, ttl in ms, the time in ms to keep an idle semaphore (0: forever), what the
--        ids begin with
-- Reply  0 granted; -3 or less: not enough are free: -4 less the time in ms until the next one expires, or -3 if it does not;
--        -2 and another number: the semaphore has that size
--
-- Twice is harmless: the second run finds its own ids, and sets their time again.

-- @include common, arguments, publish, permits_common, permits_wake

local function run()
  local free, out, sizes = KEYS[1], KEYS[2], KEYS[3]
  local size, take = whole(ARGV[1], 1, LONGEST_COUNT), whole(ARGV[2], 1, MOST_PERMITS)
  local ttl, kept = whole(ARGV[3], 1, LONGEST_TTL), whole(ARGV[4], 0, FOREVER)
  local ids, now = ids_of(ARGV[5], take), clock()

  local left = free_of(free)
  doing = 'ZCARD'
  local used = call('ZCARD', out)
  local fresh = not left
  -- A counter that was evicted is made again.
  left = left or size - used
  local has, there, own = left + used, 0, 0
  -- Otherwise ZADD finds out.
  if has ~= size or left < take then
    there, own = look_up(out, ids, now)
    -- After a resize, others may need what has expired.
    if there == take and (own == 0 or left >= 0) then
      put(out, ids, now + ttl)
      return 0
    end
  end
  -- Who does not know of a resize goes on with the size of today.
  local former = false
  if has ~= size then
    doing = 'HEXISTS'
    former = take <= has and call('HEXISTS', sizes, ARGV[1]) == 1
    if not former then
      return { -2, has }
    end
  end
  local needed, swept = take - there - left, 0
  if needed > 0 then
    -- Those that have expired are free again, but for some of our own that are left.
    doing = 'ZCOUNT'
    local expired = call('ZCOUNT', out, '-inf', now)
    if expired - own < needed then
      doing = 'ZRANGE'
      local next = call('ZRANGE', out, expired, expired, 'WITHSCORES')
      local ends = tonumber(next[2])
      if not ends or ends - now > LONGEST_TTL then
        return -3
      end
      return -4 - (ends - now)
    end
    swept = math.min(expired - own, math.max(needed, 1000))
    need('ZREMRANGEBYRANK', out, '1', '0')
  end
  -- How long the counter lasts; -1: forever. The permits that are out are kept for as long: it would miss them for good.
  local ms = kept == 0 and FOREVER or math.max(kept, ttl)
  local lasts, extends = kept == 0 and -1 or ms, false
  doing = 'PTTL'
  if not fresh then
    lasts = call('PTTL', free)
    extends = lasts >= 0 and lasts < ms
    lasts = extends and ms or lasts
  end
  local least, keeps = lasts == -1 and FOREVER or lasts, lasts >= 0
  if used > 0 then
    local lives = call('PTTL', out)
    keeps = lives >= 0 and lives < least
  end
  need('SET', free, string.format('%d', left), 'XX', 'KEEPTTL')
  if keeps then
    need('PEXPIRE', out, '1', 'GT')
  end
  if extends then
    need('PEXPIRE', free, '1', 'GT')
  end
  if former then
    keep(sizes, ms)
  end

  local rest = string.format('%d', left + swept - put(out, ids, now + ttl))
  doing = 'SET'
  if not fresh then
    call('SET', free, rest, 'KEEPTTL')
  elseif kept == 0 then
    call('SET', free, rest)
  else
    call('SET', free, rest, 'PX', string.format('%d', ms))
  end
  if swept > 0 then
    doing = 'ZREMRANGEBYRANK'
    call('ZREMRANGEBYRANK', out, 0, swept - 1)
  end
  doing = 'PEXPIRE'
  if extends then
    call('PEXPIRE', free, string.format('%d', ms))
  end
  if keeps then
    -- It must not end before the counter, not even by the time between two commands.
    call('PEXPIRE', out, string.format('%d', least))
  end
  if fresh then
    -- Clients of Redisson that came before wait for this: for them there were no permits.
    wake(free, tonumber(rest))
  end
  return 0
end

-- @include protected_call
