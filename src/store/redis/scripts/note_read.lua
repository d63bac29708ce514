-- Returns the note of a lock.
--
-- KEYS   note: see `note.lua`
-- ARGV   none
-- Reply  act, from, by, why, at, fence; empty texts without a note
--
-- Twice is harmless: it writes nothing.

local reply, fields, all = {}, {}, redis.pcall('HGETALL', KEYS[1])
if all.err then
  -- The server does not name the key.
  local is_other = string.find(all.err, 'WRONGTYPE', 1, true)
  return is_other and redis.error_reply('WRONGTYPE the key ' .. KEYS[1] .. ' holds no note') or all
end
for i = 1, #all, 2 do
  fields[all[i]] = all[i + 1]
end
for i, field in ipairs({ 'act', 'from', 'by', 'why', 'at', 'fence' }) do
  reply[i] = fields[field] or ''
end
return reply
