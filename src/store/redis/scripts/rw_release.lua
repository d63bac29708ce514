-- Releases a read-write lock for a holder, in whichever mode it has it. One that writes and is a reader here has lost the
-- write lock: a server can lose a change of the mode.
--
-- KEYS   lock, and the timeout key of the holder as a reader: see `rw_common.lua`. Or the lock alone, if a cluster is moving
--        the slot and the other key is elsewhere: that one expires by itself, and means nothing without the hash
-- ARGV   holder id, read or write, the hold count to set (0: release)
-- Reply  as `release.lua`; 0 if only a count was set, or if readers are left
--
-- Twice is harmless: after the first run the holder id is not there, and is never used again.

-- @include common, arguments, publish, rw_common, rw_wake

local function run()
  local lock, timeout = KEYS[1], KEYS[2]
  local holder, writes, remains = ARGV[1], ARGV[2] == 'write', ARGV[3]
  local written = holder .. ':write'
  whole(remains, 0, LONGEST_COUNT)

  local mode = mode_of(lock)
  if mode and remains ~= '0' then
    doing = 'HEXISTS'
    if call('HEXISTS', lock, written) == 1 then
      doing = 'HSET'
      call('HSET', lock, written, remains)
      return 0
    elseif not writes and call('HEXISTS', lock, holder) == 1 then
      return 0
    end
  end
  local absent = (not mode or not writes and mode == 'read') and -1 or -2
  local reads, wrote, fields = 0, 0, 0
  if mode and remains == '0' then
    if timeout then
      -- Before the hash, so that a user without the right changes nothing, and the next attempt fails too.
      doing = 'DEL'
      call('DEL', timeout)
    end
    doing = 'HLEN'
    fields = call('HLEN', lock)
    doing = 'HDEL'
    reads, wrote = call('HDEL', lock, holder), call('HDEL', lock, written)
  end
  if reads + wrote == 0 then
    return absent
  end
  local message = wrote == 1 and '1' or '0'
  if fields - reads - wrote > 1 then
    if wrote == 0 and mode == 'write' then
      return writes and absent or 0
    end
    -- The hash lives about as long as the readers that are left. Those without a time to live of their own go with it.
    doing = 'PTTL'
    local left = call('PTTL', lock)
    if left < 0 then
      -- Another client has removed the time to live.
      left = LONGEST_TTL
    end
    local known, best = pcall(readers_left, lock, '', false, math.max(left * 2 / 3, 1))
    if not known then
      -- The times of the others may be on another server. The hash keeps its own.
      best = left
    end
    if best > 0 then
      doing = 'HSET'
      call('HSET', lock, 'mode', 'read')
      if best < left * 2 / 3 then
        doing = 'PEXPIRE'
        call('PEXPIRE', lock, best)
      end
      message = wrote == 1 and message
    end
    if best == 0 then
      doing = 'DEL'
      call('DEL', lock)
    end
  else
    doing = 'DEL'
    call('DEL', lock)
  end
  local woken = message and wake(lock, message) or 0
  return writes and wrote == 0 and absent or woken
end

-- @include protected_call
