-- Extends many locks that are still held by their tokens.
--
-- KEYS   for each item: lock, and its fence if its step is F
-- ARGV   ttl in ms, for how long in ms to remember fencing tokens; for each item its token; then the
--        steps, a letter for each item: F prolongs the memory of the fencing token too, L does not
-- Reply  for each item: 1 renewed; -1 gone; -2 taken; or an error's text
--
-- Twice is harmless: the time to live is set, not added to. It never makes a key. PEXPIRE without GT, so
-- that a time to live that someone removed or prolonged is put right.

local ttl, retention, steps = ARGV[1], ARGV[2], ARGV[#ARGV]
whole(ttl, 1, LONGEST_TTL)

local function renew(lock, fence, token)
  doing = 'HEXISTS'
  if call('HEXISTS', lock, token) == 0 then
    doing = 'EXISTS'
    return call('EXISTS', lock) == 0 and -1 or -2
  end
  doing = 'PEXPIRE'
  call('PEXPIRE', lock, ttl)
  if fence then
    call('PEXPIRE', fence, retention)
  end
  return 1
end

local key, reply = 1, {}
for i = 1, #steps do
  local lock, fence = KEYS[key], nil
  key = key + 1
  if string.sub(steps, i, i) == 'F' then
    fence = KEYS[key]
    key = key + 1
  end
  local ok, code = pcall(renew, lock, fence, ARGV[i + 2])
  reply[i] = ok and code or message(code)
end
return reply
