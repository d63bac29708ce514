-- Returns the note of a lock.
--
-- KEYS   note: see `note.lua`
-- ARGV   none
-- Reply  act, from, by, why, at, fence; empty texts without a note
--
-- Twice is harmless: it writes nothing.

local reply = {}
for i, field in ipairs({ 'act', 'from', 'by', 'why', 'at', 'fence' }) do
  reply[i] = redis.call('HGET', KEYS[1], field) or ''
end
return reply
