-- Acquires permits of a semaphore, or grants them again to the holder that has them. `permits_common.lua` comes before.
--
-- KEYS   free, out, sizes: see `permits_common.lua`
-- ARGV   the size, the number of permits, ttl in ms, the time in ms to keep an idle semaphore (0: forever), the ids
-- Reply  0 granted; -3 or less: not enough are free: -4 less the time in ms until the next one expires, or -3 if it does not;
--        -2 and another number: the semaphore has that size
--
-- Twice is harmless: the second run finds its own ids, and sets their time again.

local free, out, sizes = KEYS[1], KEYS[2], KEYS[3]
local size, take = whole(ARGV[1], 1, LONGEST_COUNT), whole(ARGV[2], 1, 65535)
local ttl, kept = whole(ARGV[3], 1, LONGEST_TTL), whole(ARGV[4], 0, 9007199254740991)
local ids, now = ids_of(ARGV[5], take), clock()

local left = free_of(free)
local there = count_out(out, ids)
if there == take then
  doing = 'ZADD'
  for _, id in ipairs(ids) do
    call('ZADD', out, now + ttl, id)
  end
  return 0
end

-- What has expired is free again. Of our own ids, too, if only some are left.
local back = there > 0 and remove(out, ids) or 0
doing = 'ZRANGEBYSCORE'
back = back + remove(out, call('ZRANGEBYSCORE', out, '-inf', now, 'LIMIT', 0, 1000))
doing = 'ZCARD'
local used = call('ZCARD', out)
local fresh = not left
-- A counter that was evicted is made again.
left = left and left + back or size - used
local has = left + used
-- Who does not know of a resize goes on with the size of today.
local known = has == size
if not known and take <= has then
  doing = 'HEXISTS'
  known = call('HEXISTS', sizes, ARGV[1]) == 1
  if known and kept > 0 then
    keep(sizes, kept)
  end
end
local granted = known and left >= take
if granted then
  left = left - take
end
if granted or back > 0 and not fresh then
  doing = 'SET'
  if not fresh then
    call('SET', free, format('%d', left), 'KEEPTTL')
  elseif kept == 0 then
    call('SET', free, format('%d', left))
  else
    call('SET', free, format('%d', left), 'PX', format('%d', math.max(kept, ttl)))
  end
end
if not known then
  return { -2, has }
end
if granted then
  doing = 'ZADD'
  for _, id in ipairs(ids) do
    call('ZADD', out, now + ttl, id)
  end
  if kept == 0 then
    return 0
  end
  keep(free, math.max(kept, ttl))
  if used > 0 then
    -- Others made it, perhaps to be kept forever.
    keep(out, math.max(kept, ttl))
    return 0
  end
  doing = 'PEXPIRE'
  local expires = try('PEXPIRE', out, format('%d', math.max(kept, ttl)))
  if expires ~= 1 then
    -- These must not stay without a time to live.
    remove(out, ids)
    call('INCRBY', free, take)
    error(expires)
  end
  return 0
end
doing = 'ZRANGE'
local next = call('ZRANGE', out, 0, 0, 'WITHSCORES')
local ends = tonumber(next[2])
if not ends or ends - now > LONGEST_TTL then
  return -3
end
return -4 - math.max(ends - now, 0)
