-- Takes a lock away from its holder, and wakes waiters.
--
-- KEYS   lock
-- ARGV   none; or: act, author, reason, inbox, name, all of them empty for no note; then, if it is to be taken from no other
--        holder: its id, or its beginning before a dot
-- Reply  1 if it was held, 0 if not; then the holder that a note was left for
--
-- Twice is harmless: the second run finds nothing, or does what was requested again. A key that is not a hash stays,
-- because HEXISTS fails on it. A read-write lock stays, too. A note that the server refuses is left out.

-- @include common, arguments, publish, holder_of, noted, note, wake_function

local function force(lock)
  check_kind(lock)
  local holder
  if ARGV[6] then
    holder = holder_of(lock)
    if not holder or holder ~= ARGV[6] and string.sub(holder, 1, #ARGV[6] + 1) ~= ARGV[6] .. '.' then
      return { 0 }
    end
  elseif ARGV[1] then
    local found, there = pcall(holder_of, lock)
    holder = found and there or nil
  end
  doing = 'DEL'
  local deleted = call('DEL', lock)
  if holder and ARGV[1] ~= '' then
    pcall(leave_note, note_of(lock), ARGV[1], holder, '', ARGV[2], ARGV[3], '0')
    send_hint(ARGV[4], holder, 'verify ' .. ARGV[5])
  end
  wake(lock)
  return { deleted, holder }
end

local done, reply = pcall(force, KEYS[1])
return done and reply or redis.error_reply(message(reply))
