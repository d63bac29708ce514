-- The line of a lock: the managers that wait for it, in the order of arrival. A function that makes functions, because to make
-- them costs more than the commands of a lock without waiters. Its arguments: line and lapses, the keys; holder, the
-- id of the request. The part before defines now, the server's time in microseconds, which is nil until it is asked for.
--
-- line    sorted set: manager -> when its oldest waiter arrived, in microseconds
-- lapses  hash: manager -> number of the holder id that took the place, a space, and when the place lapses, in microseconds
--
-- Reply  a table of functions
--
-- Twice is harmless: times and numbers are absolute.

local function line_of(line, lapses, holder)
  local manager, number = string.match(holder, '^([^:]+):(%d+)')
  number = tonumber(number)
  if not number then
    error('LEASEHOLD bad argument ' .. holder, 0)
  end
  doing = 'TIME'
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]

  -- Returns who took the place of a manager, and when it lapses; nil if it has none.
  local function place_of(who)
    doing = 'HGET'
    local text = call('HGET', lapses, who)
    if text then
      local by, lapse = string.match(text, '^(%d+) (%d+)$')
      return tonumber(by), tonumber(lapse)
    end
    return nil
  end

  -- Ends the place of a manager.
  local function remove(who)
    doing = 'ZREM'
    call('ZREM', line, who)
    doing = 'HDEL'
    call('HDEL', lapses, who)
  end

  -- Returns when the waiter that asks arrived: a repeated request never makes it later.
  local function arrival(waited)
    local arrived = now - waited
    if place_of(manager) == number then
      doing = 'ZSCORE'
      arrived = math.min(arrived, tonumber(call('ZSCORE', line, manager)) or arrived)
    end
    return arrived
  end

  -- Returns when the oldest waiter of another manager arrived, and when its place lapses; nil if there is none. Removes the
  -- places before it that have lapsed.
  local function oldest()
    local at = 0
    while true do
      doing = 'ZRANGE'
      local head = call('ZRANGE', line, at, at, 'WITHSCORES')
      local who = head[1]
      if not who then
        return nil
      elseif who == manager then
        at = at + 1
      else
        local _, lapse = place_of(who)
        if lapse and lapse > now then
          return tonumber(head[2]), lapse
        end
        remove(who)
      end
    end
  end

  -- Makes a key live for so many ms at least.
  local function live(key, kept)
    doing = 'PTTL'
    if call('PTTL', key) < kept then
      doing = 'PEXPIRE'
      call('PEXPIRE', key, string.format('%d', kept))
    end
  end

  local function write(arrived, kept)
    doing = 'ZADD'
    call('ZADD', line, string.format('%d', arrived), manager)
    doing = 'HSET'
    call('HSET', lapses, manager, string.format('%d %d', number, now + kept * 1000))
    live(line, kept * 2)
    live(lapses, kept * 2)
  end

  -- Takes the place of the manager for kept ms, or refreshes it, unless a later waiter has it. Returns when an earlier waiter
  -- arrived that had it; nil if none had.
  local function take(arrived, kept)
    local by = place_of(manager)
    if kept == 0 or by and by > number then
      return nil
    end
    local before = nil
    if by and by < number then
      doing = 'ZSCORE'
      before = tonumber(call('ZSCORE', line, manager)) or nil
    end
    local done, caught = pcall(write, arrived, kept)
    if not done then
      -- No key stays without a time to live: one that this call made goes with its only member.
      local what = doing
      try('ZREM', line, manager)
      try('HDEL', lapses, manager)
      doing = what
      -- In a full memory it waits all the same, without a place.
      if not string.find(message(caught), 'OOM', 1, true) then
        error(caught, 0)
      end
    end
    return before
  end

  -- Ends the place of the manager, or gives it for kept ms to a waiter that arrived then, unless a later waiter has it. Returns whether there was one.
  local function leave(arrived, kept)
    local by = place_of(manager)
    if by and by <= number then
      if kept > 0 then
        take(arrived, kept)
      else
        remove(manager)
      end
    end
    return by ~= nil
  end

  return { place_of = place_of, arrival = arrival, oldest = oldest, take = take, leave = leave }
end
