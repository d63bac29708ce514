-- Takes a lock from one holder for another.
--
-- KEYS   lock    hash of one field: holder id -> hold count
--        note    see `note.lua`
--        fence   string: the last reserved fencing token; only if a block is requested
-- ARGV   new holder id, ttl in ms, old holder id, author, reason, inbox, name; if there is a fence: block and retention
-- Reply  the first fencing token (0: none)   granted; an even one is not ahead of the clock
--        -1                                  the lock is free; nothing is granted
--        -3 or less                          held by another: -4 less the holder's time to live in ms, or -3 without one
--
-- Twice is harmless: the second run finds the new holder and its fencing token. A late one finds neither the old nor the new
-- holder. An old id that another client uses again is distinguished by the note, which names the new holder of the act.

-- @include common, arguments, publish, holder_of, noted, note

local function run()
  local lock, note, fence = KEYS[1], KEYS[2], KEYS[3]
  local holder, ttl, from = ARGV[1], ARGV[2], ARGV[3]
  local block, retention, span, now, newest, text, last = 1, '0', 0, nil, nil, nil, nil
  whole(ttl, 1, LONGEST_TTL)
  if fence then
    block, retention = whole(ARGV[8], 1, 1000000), ARGV[9]
    span = whole(retention, 0, 9007199254740991) * 50
  end
  doing = 'PTTL'
  local left, first, fresh = call('PTTL', lock), 0, false
  if left == -2 then
    return -1
  end
  check_kind(lock)
  local there = holder_of(lock)
  if there == holder then
    -- @include fence_again
  else
    if there ~= from then
      return -4 - left
    end
    if read_note(note).to == holder then
      return -4 - left
    end
    fresh = true
  end
  -- @include fence, steal_grant
end

-- @include protected_call
