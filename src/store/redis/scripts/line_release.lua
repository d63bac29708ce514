-- Releases a lock, and takes a place in its line for the next waiter of the same manager.
--
-- KEYS   lock          hash of one field: holder id -> hold count
--        line, lapses  see `line_common.lua`
-- ARGV   holder id, the time in microseconds that the next waiter has waited, the time in ms for which its place is kept (0:
--        there is none)
-- Reply  the reply of `release.lua`; 0 if another manager waits in the line, which orders those that were woken
--
-- Twice is harmless: the second run finds no holder id, and takes no place.

-- @include common, arguments, publish

local now
-- @include release_function, line_common

local function run()
  local lock, holder = KEYS[1], ARGV[1]
  local waited, kept = whole(ARGV[2], 0, 9007199254740991), whole(ARGV[3], 0, LONGEST_TTL)
  local reply = release(lock, holder)
  if reply == -1 or reply == -2 or kept == 0 and reply <= 0 then
    return reply
  end
  -- What fails here must not turn a completed release into an error.
  local done, first = pcall(function()
    local waits = line_of(KEYS[2], KEYS[3], holder)
    waits.take(now - waited, kept)
    return waits.oldest()
  end)
  if done and first and reply > 0 then
    return 0
  end
  return reply
end

-- @include protected_call
