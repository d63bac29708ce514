-- Extends read-write locks that are still held by their holders. A holder that reads may be the writer here: the renewal may
-- come late. One that writes must be the writer: a server can lose a change of the mode. `rw_common.lua`,
--
-- KEYS   for each item: lock, and the timeout key of the holder as a reader; and its fence if its step is F. Only the lock if
--        it is H, and only the timeout key if it is T
-- ARGV   ttl in ms, the time in ms to remember fencing tokens, for each item: holder id, read or write, and a step:
--        F  renew, and remember the fencing token for longer
--        L  renew
--        T  extend the timeout key, if it is there. It must come before H, so that a reader that leaves in between takes the
--           new time for that of the hash
--        H  extend the hash
-- Reply  for each item: 0 renewed; -1 gone; -2 taken; -3 stolen; -4 forced open; or the text of an error
--
-- Twice is harmless: times to live are set, not added to. L and F make the timeout key again, but only while the hash names
-- the reader, so that no writer can have had the lock since. T and H make no key: while a cluster moves the slot, a key that
-- is missing here may be on the other server.

-- @include common, arguments, rw_common, noted, fence_keep

local function run()
  local ttl, retention = ARGV[1], ARGV[2]
  whole(ttl, 1, LONGEST_TTL)
  whole(retention, 0, 9007199254740991)

  local function renew(lock, timeout, fence, holder, writes)
    local mode = mode_of(lock)
    doing = 'HEXISTS'
    if mode and call('HEXISTS', lock, holder .. ':write') == 1 then
      doing = 'PEXPIRE'
      call('PEXPIRE', lock, ttl)
    elseif mode and not writes and call('HEXISTS', lock, holder) == 1 then
      doing = 'PEXPIRE'
      -- SET alone is refused in a full memory.
      if timeout and call('PEXPIRE', timeout, ttl) == 0 then
        doing = 'SET'
        call('SET', timeout, '1', 'PX', ttl)
      end
      doing = 'PTTL'
      local left = call('PTTL', lock)
      doing = 'PEXPIRE'
      if left < tonumber(ttl) then
        call('PEXPIRE', lock, ttl)
      end
    else
      return noted(lock, holder) or (not mode or not writes and mode == 'read') and -1 or -2
    end
    if fence then
      keep_fence(fence, retention)
    end
    return 0
  end

  local reply, key = {}, 1
  for item = 1, (#ARGV - 2) / 3 do
    local at = item * 3
    local step = ARGV[at + 2]
    local lock, timeout, fence = KEYS[key], nil, nil
    if step == 'T' then
      doing = 'PEXPIRE'
      reply[item] = call('PEXPIRE', lock, ttl) - 1
    else
      if step ~= 'H' then
        key = key + 1
        timeout = KEYS[key]
      end
      if step == 'F' then
        key = key + 1
        fence = KEYS[key]
      end
      local done, result = pcall(renew, lock, timeout, fence, ARGV[at], ARGV[at + 1] == 'write')
      reply[item] = done and result or message(result)
    end
    key = key + 1
  end
  return reply
end

-- @include protected_call
