-- Extends read-write locks that are still held by their holders. A holder that reads may be the writer here: the renewal may
-- come late. One that writes must be the writer: a server can lose a change of the mode. `rw_common.lua` and
-- `noted.lua` come before.
--
-- KEYS   for each item: lock, and the timeout key of the holder as a reader; and its fence if its step is F
-- ARGV   ttl in ms, the time in ms to remember fencing tokens, for each item: holder id, read or write, F or L
-- Reply  for each item: 0 renewed; -1 gone; -2 taken; -3 stolen; -4 forced open; or the text of an error
--
-- Twice is harmless: times to live are set, not added to. It makes the timeout key again, but only while the hash names the
-- reader, so that no writer can have had the lock since.

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
    if call('PEXPIRE', timeout, ttl) == 0 then
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
    -- Never shorter: a token that is ahead of the clock is remembered for longer. One that is kept forever stays so.
    call('PEXPIRE', fence, retention, 'GT')
  end
  return 0
end

local reply, key = {}, 1
for item = 1, (#ARGV - 2) / 3 do
  local at = item * 3
  local fence = nil
  if ARGV[at + 2] == 'F' then
    fence = KEYS[key + 2]
  end
  local done, result = pcall(renew, KEYS[key], KEYS[key + 1], fence, ARGV[at], ARGV[at + 1] == 'write')
  reply[item] = done and result or message(result)
  key = key + (fence and 3 or 2)
end
return reply
