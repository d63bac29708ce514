-- Reads the note about a lock, which `note.lua` describes. Its key follows from the lock, so that a renewal of a lock that is
-- held needs no key more. By HGETALL, so that the user needs no permission more.

-- Returns the key of the note of a lock.
local function note_of(lock)
  if string.find(lock, '{', 1, true) then
    return 'leasehold_note:' .. lock
  end
  return 'leasehold_note:{' .. lock .. '}'
end

-- Returns the fields of a note; none if there is no note, or if the server refuses to tell.
local function read_note(note)
  local fields, all = {}, try('HGETALL', note)
  for i = 1, #all, 2 do
    fields[all[i]] = all[i + 1]
  end
  return fields
end

-- Returns -3 if the lock was stolen from this holder, -4 if it was forced open, and nil for anything else.
local function noted(lock, holder)
  local fields = read_note(note_of(lock))
  if not fields.from or not string.find(' ' .. fields.from .. ' ', ' ' .. holder .. ' ', 1, true) then
    return nil
  end
  return fields.act == 'steal' and -3 or fields.act == 'force' and -4 or nil
end

