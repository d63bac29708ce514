-- Extends the permits of holders that still have all of theirs. `permits_common.lua` and `permits_wake.lua` come before.
--
-- KEYS   for each item: free, out: see `permits_common.lua`
-- ARGV   ttl in ms, the time in ms to keep an idle semaphore (0: as it is), for each item: the number of permits, the ids
-- Reply  for each item: 0 renewed; -1 some were gone, and the rest was released; or the text of an error
--
-- Twice is harmless: the time is set, not added to.

local ttl, kept = whole(ARGV[1], 1, LONGEST_TTL), whole(ARGV[2], 0, FOREVER)
local now = clock()

local function renew(free, out, take, hex)
  local ids = ids_of(hex, whole(take, 1, 65535))
  local left, there = free_of(free), look_up(out, ids, now)
  if there < #ids then
    if there > 0 then
      give_back(free, out, left, ids, there)
    end
    return -1
  end
  put(out, ids, now + ttl)
  local ms = math.max(kept, ttl * 2)
  local lasts = keep(free, ms)
  keep_out(out, lasts == -2 and ms or lasts)
  return 0
end

-- Changes nothing, but as the first command that writes it lets the others pass in full memory.
try('ZREM', KEYS[2], '')
local reply = {}
for item = 1, (#ARGV - 2) / 2 do
  local done, result = pcall(renew, KEYS[item * 2 - 1], KEYS[item * 2], ARGV[item * 2 + 1], ARGV[item * 2 + 2])
  reply[item] = done and result or message(result)
end
return reply
