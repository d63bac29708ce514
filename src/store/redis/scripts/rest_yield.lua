-- Asks the manager of a lock's holder to give the lock up, if it lingers: if the hold rests there, it is released.
--
-- KEYS   lock
-- ARGV   inbox, name; see `note.lua`
-- Reply  an array with the holder id, if its manager lingers: its uuid is of version 8; 0 if not
--
-- Twice is harmless: hints may come twice.

-- @include common, arguments, publish, noted, note

local function run()
  doing = 'HGETALL'
  local holder = call('HGETALL', KEYS[1])[1]
  if not holder or not string.find(holder, '^%x+%-%x+%-8%x+%-%x+%-%x+:') then
    return 0
  end
  send_hint(ARGV[1], holder, 'yield ' .. ARGV[2])
  return { holder }
end

-- @include protected_call
