-- Extends the permits of holders that still have all of theirs.
--
-- KEYS   for each item: free, out: see `permits_common.lua`. Or out alone for the only item, if a cluster is moving the slot and
--        the counter is elsewhere: it can be left out for as long as it lives by itself, and is made again after that
-- ARGV   ttl in ms, the time in ms to keep an idle semaphore (0: as it is), for each item: the number of permits,
--        what the ids begin with
-- Reply  for each item: 0 renewed; -1 some were gone, and the rest was released, or expires without the counter; or the text
--        of an error
--
-- Twice is harmless: the time is set, not added to. What was released without the counter is not renewed.

-- @include common, arguments, publish, permits_common, permits_wake

local function run()
  local ttl, kept = whole(ARGV[1], 1, LONGEST_TTL), whole(ARGV[2], 0, FOREVER)
  local now = clock()

  local function renew(free, out, take, head)
    local ids = ids_of(head, whole(take, 1, MOST_PERMITS))
    local left = free and free_of(free)
    local there, _, released = look_up(out, ids, now)
    if there - released < #ids then
      if there > 0 and free then
        release_permits(free, out, left, ids)
      end
      return -1
    end
    put(out, ids, now + ttl)
    local ms = math.max(kept, ttl * 2)
    local lasts = free and keep(free, ms) or ms
    keep_out(out, lasts == -2 and ms or lasts)
    return 0
  end

  -- Changes nothing, but as the first command that writes it lets the others pass in full memory.
  try('ZREM', KEYS[2] or KEYS[1], '')
  local reply = {}
  for item = 1, (#ARGV - 2) / 2 do
    local free, out = KEYS[item * 2 - 1], KEYS[item * 2]
    if not out then
      free, out = nil, free
    end
    local done, result = pcall(renew, free, out, ARGV[item * 2 + 1], ARGV[item * 2 + 2])
    reply[item] = done and result or message(result)
  end
  return reply
end

-- @include protected_call
