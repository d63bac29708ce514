-- Acquires a lock in the order of arrival, or grants it again to the holder that has it. Only for an outermost acquire.
--
-- KEYS   lock          hash of one field: holder id -> hold count
--        line, lapses  see `line_common.lua`
--        fence         string: the last reserved fencing token; only if a block is requested
-- ARGV   holder id, ttl in ms, the time in microseconds that the caller has waited, the time in ms for which its place is
--        kept (0: it does not wait); if there is a fence: block and retention
-- Reply  granted: the reply of `acquire.lua`; if another manager waits, a list of it and the time in microseconds that the
--        oldest waiter of the others has waited
--        held: as `acquire.lua`, by a holder, or by the place of an older waiter
--
-- Twice is harmless: `acquire.lua` is. A place has the time of the waiter's arrival, and a later copy of a request never makes
-- it younger. A copy that comes after the place was left takes it once more; it lapses.

-- @include common, arguments, publish, acquire_function, wake_function, line_common

local function run()
  local lock, fence, holder = KEYS[1], KEYS[4], ARGV[1]
  ttl, block, retention, span = ARGV[2], 1, '0', 0
  whole(ttl, 1, LONGEST_TTL)
  local waited, kept = whole(ARGV[3], 0, 9007199254740991), whole(ARGV[4], 0, LONGEST_TTL)
  if fence then
    block, retention = whole(ARGV[5], 1, 1000000), ARGV[6]
    span = whole(retention, 0, 9007199254740991) * 50
  end

  doing = 'EXISTS'
  local waits, arrived, first, lapse = nil, nil, nil, nil
  if call('EXISTS', KEYS[2]) == 1 then
    waits = line_of(KEYS[2], KEYS[3], holder)
    arrived, first, lapse = waits.arrival(waited), waits.oldest()
    if first and first < arrived then
      doing = 'EXISTS'
      if call('EXISTS', lock) == 0 then
        local before = waits.take(arrived, kept)
        if before and before < first then
          -- The first may have been refused by that place, which is behind it now.
          wake(lock)
        end
        return -4 - math.ceil((lapse - now) / 1000)
      end
    end
  end
  local reply = acquire(lock, fence, holder)
  if reply < 0 then
    if kept > 0 then
      waits = waits or line_of(KEYS[2], KEYS[3], holder)
      waits.take(arrived or now - waited, kept)
    end
    return reply
  end
  if waits then
    waits.leave(0, 0)
    if first then
      return { reply, math.max(now - first, 0) }
    end
  end
  return reply
end

-- @include protected_call
