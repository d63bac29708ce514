-- Returns the note of a lock.
--
-- KEYS   note: see `note.lua`
-- ARGV   none
-- Reply  act, from, by, why, at, fence; empty texts without a note
--
-- Twice is harmless: it writes nothing.

local reply, fields, all = {}, {}, redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  fields[all[i]] = all[i + 1]
end
for i, field in ipairs({ 'act', 'from', 'by', 'why', 'at', 'fence' }) do
  reply[i] = fields[field] or ''
end
return reply
