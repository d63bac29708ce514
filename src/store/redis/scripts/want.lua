-- Leaves a note for the holder of a lock that the lock is wanted.
--
-- KEYS   lock, note: see `note.lua`
-- ARGV   holder id, author, reason, inbox, name
-- Reply  1 if it is the holder, 0 if not
--
-- Twice is harmless: the note is the same, and hints may come twice.

-- @include common, arguments, publish, holds, noted, note

local function run()
  if not holds(KEYS[1], ARGV[1]) then
    return 0
  end
  leave_note(KEYS[2], 'want', ARGV[1], '', ARGV[2], ARGV[3], '0')
  send_hint(ARGV[4], ARGV[1], 'want ' .. ARGV[5])
  return 1
end

-- @include protected_call
