-- Acquires a read-write lock for a reader or the writer, grants it again, or changes the mode of a holder.
--
-- KEYS   lock, and the timeout key of the holder as a reader: see `rw_common.lua`
--        own side, other side   strings: when the oldest waiter among the readers or among the writers arrived, in
--                               microseconds of the server's clock, a space, its manager, a colon, and the
--                               number of the last holder id that asked for the place
--        fence                  string: the last reserved fencing token; only if a block is requested
-- ARGV   holder id, ttl in ms, read or write, 1 to change the mode (else 0), the time in microseconds that the caller has
--        waited, the time in ms for which its place is kept (0: it does not wait); if there is a fence: block and
--        retention
-- Reply  as `acquire.lua`; -1 or -2 if the mode is to be changed and the hold is gone, or taken
--
-- Twice is harmless: the time to live is absolute, and the second run finds the first one's. A late copy of a request
-- without the change never changes the mode of a holder.

-- @include common, arguments, publish, rw_common, rw_wake

local function run()
  local lock, timeout, own_side, other_side, fence = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
  local holder, ttl, writes = ARGV[1], ARGV[2], ARGV[3] == 'write'
  local changes, waited, kept_place = ARGV[4] == '1', ARGV[5], ARGV[6]
  local block, retention, span, now, newest, text, last = 1, '0', 0, nil, nil, nil, nil
  whole(ttl, 1, LONGEST_TTL)
  whole(waited, 0, 9007199254740991)
  whole(kept_place, 0, LONGEST_TTL)
  if ARGV[3] ~= 'write' and ARGV[3] ~= 'read' then
    error('LEASEHOLD bad argument ' .. ARGV[3], 0)
  end
  if fence then
    block, retention = whole(ARGV[7], 0, 1000000), ARGV[8]
    span = whole(retention, 0, 9007199254740991) * 50
  end

  -- Returns when the oldest waiter of a side arrived, its manager, and the number of the last holder id that asked for the
  -- place; nil if there is none.
  local function oldest(side)
    doing = 'GET'
    local arrived, manager, number = string.match(call('GET', side) or '', '^(%-?%d+) (.+):(%d+)$')
    return tonumber(arrived), manager, tonumber(number)
  end

  local mode, written = mode_of(lock), holder .. ':write'
  local reads, wrote, left, first = false, false, 0, 0
  if mode then
    doing = 'HEXISTS'
    reads, wrote = call('HEXISTS', lock, holder) == 1, call('HEXISTS', lock, written) == 1
    doing = 'PTTL'
    left = call('PTTL', lock)
  end
  doing = 'TIME'
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
  local fresh, leaves = false, false

  if reads or wrote then
    if changes and writes and not wrote then
      -- The only reader becomes the writer, unless one waits to write.
      local others = readers_left(lock, holder, true, 1)
      doing = 'HLEN'
      if others > 0 or call('HLEN', lock) > 2 or call('EXISTS', own_side) == 1 then
        return -4 - left
      end
      fresh = true
    elseif changes and not writes and not reads then
      -- The writer becomes a reader.
      fresh = true
    elseif writes and not wrote then
      -- A late copy: the holder has changed its mode since.
      return -4 - left
    elseif wrote then
      -- @include fence_again
    elseif fence and block > 0 then
      -- Other readers have reserved tokens since. Beside a reader that has none of its own, such as that of an older client,
      -- a new one is reserved.
      doing = 'GET'
      last = tonumber(call('GET', timeout))
      if last and last > 1 and last <= GROWS then
        first = last
      end
    end
    -- Redis refuses commands that take memory only while a script has written nothing: a holder goes on in a full memory.
    doing = 'PEXPIRE'
    call('PEXPIRE', lock, string.format('%d', math.max(left, tonumber(ttl))))
  else
    if changes then
      return (not mode or not writes and mode == 'read') and -1 or -2
    end
    local refused = mode and (writes or mode == 'write')
    local manager, number = string.match(holder, '^(.*):(%d+)')
    local arrived, own, by, latest = now - waited, oldest(own_side)
    number = tonumber(number)
    if kept_place ~= '0' and by == manager and latest == number then
      -- The first arrival that it reported: a later request took another time to arrive, or the clock was set.
      arrived = math.min(arrived, own)
    end
    if not refused then
      -- An older waiter of the other side goes first. Both sides compare what is written here, so one of them always goes.
      local other = oldest(other_side)
      if other and (other < arrived or other == arrived and not writes) then
        refused = true
        doing = 'PTTL'
        left = call('PTTL', other_side)
      end
    end
    if refused then
      -- A place ends with its own waiter: that of another manager is left alone, unless it is younger, and a later waiter of
      -- this manager has its own arrival.
      local takes = not own or arrived < own
      if by == manager then
        takes = latest <= number
      end
      if kept_place ~= '0' and takes then
        doing = 'PTTL'
        local same = by == manager and latest == number
        local kept = math.max(tonumber(kept_place), same and call('PTTL', own_side) or 0)
        -- Refused in a full memory: it waits all the same.
        try('SET', own_side, string.format('%d %s:%d', arrived, manager, number), 'PX', string.format('%d', kept))
      end
      return -4 - left
    end
    leaves = by == manager
    fresh = true
  end
  -- @include propose, fence, rw_grant
end

-- @include protected_call
