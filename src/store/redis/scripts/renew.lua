-- Extends many locks that are still held by their tokens.
--
-- KEYS   for each item: lock, and its fence if the item has a retention
-- ARGV   ttl in ms; for each item: token, for how long in ms to remember the fencing token
--        (0: leave that as it is)
-- Reply  for each item: 1 renewed; -1 gone; -2 taken; or an error's text
--
-- Twice is harmless: the time to live is set, not added to. It never makes a key. PEXPIRE without GT, so
-- that a time to live that someone removed or prolonged is put right.

local function renew(lock, fence, token, ttl, retention)
  if call('HEXISTS', lock, token) == 0 then
    return absence(lock)
  end
  call('PEXPIRE', lock, ttl)
  if fence then
    call('PEXPIRE', fence, retention)
  end
  return 1
end

local ttl = string.format('%.0f', whole(ARGV[1], 1, LONGEST_TTL))
local key, reply = 1, {}
for arg = 2, #ARGV, 2 do
  local lock, fence = KEYS[key], nil
  key = key + 1
  if ARGV[arg + 1] ~= '0' then
    fence = KEYS[key]
    key = key + 1
  end
  local ok, code = pcall(renew, lock, fence, ARGV[arg], ttl, ARGV[arg + 1])
  if not ok then
    code = message(code)
  end
  reply[#reply + 1] = code
end
return reply
