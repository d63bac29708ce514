-- Reads why a holder has lost a lock, from the note that `note.lua` describes. The key follows from the lock, so that a
-- renewal of a lock that is held needs no key more.

-- Returns -3 if the lock was stolen from this holder, -4 if it was forced open, and nil for anything else, also if the server
-- refuses to tell.
local function noted(lock, holder)
  local note = 'leasehold_note:' .. lock
  if not find(lock, '{', 1, true) then
    note = 'leasehold_note:{' .. lock .. '}'
  end
  local from = try('HGET', note, 'from')
  if type(from) ~= 'string' or not find(' ' .. from .. ' ', ' ' .. holder .. ' ', 1, true) then
    return nil
  end
  local act = try('HGET', note, 'act')
  return act == 'steal' and -3 or act == 'force' and -4 or nil
end

