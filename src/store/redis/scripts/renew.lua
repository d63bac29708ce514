-- Extends many locks that are still held by their tokens.
--
-- KEYS   for each item: lock, and its fence if its step is F
-- ARGV   ttl in ms, for how long in ms to remember fencing tokens; what all tokens begin with; the rest
--        of each, with spaces between; then the steps, a letter for each item: F prolongs the memory of
--        the fencing token too, L does not
-- Reply  0 alone if all were renewed; else for each item: 1 renewed; -1 gone; -2 taken; or an error's text
--
-- Twice is harmless: the time to live is set, not added to. It never makes a key. PEXPIRE without GT, so
-- that a time to live that someone removed or prolonged is put right.

local keys, byte = KEYS, string.byte
local ttl, retention, head, tails, steps = unpack(ARGV)
local tail = string.gmatch(tails, '%S+')
local reply, all = {}, true
local at, key, F = 0, 0, byte('F')
whole(ttl, 1, LONGEST_TTL)

-- Renews what is left. An error ends it with `at` at the item that met it.
local function run()
  while at < #steps do
    at, key = at + 1, key + 1
    local lock, fence = keys[key], nil
    if byte(steps, at) == F then
      key = key + 1
      fence = keys[key]
    end
    doing = 'HEXISTS'
    if call('HEXISTS', lock, head .. tail()) == 1 then
      doing = 'PEXPIRE'
      call('PEXPIRE', lock, ttl)
      if fence then
        call('PEXPIRE', fence, retention)
      end
      reply[at] = 1
    else
      all, doing = false, 'EXISTS'
      reply[at] = call('EXISTS', lock) == 0 and -1 or -2
    end
  end
end

while true do
  local done, caught = pcall(run)
  if done then
    return all and { 0 } or reply
  end
  all, reply[at] = false, message(caught)
end
