-- Writes what `steal.lua` has granted, for a lock that is a string. It takes the place of `steal_grant.lua`.
--
-- Reply  the first fencing token
--
-- Twice is harmless: the note is the same, and the holder id and the time to live are absolute.

if fresh then
  leave_note(note, 'steal', from, holder, ARGV[4], ARGV[5], string.format('%d', first))
end
doing = 'SET'
call('SET', lock, holder, 'PX', ttl)
if fresh then
  send_hint(ARGV[6], from, 'verify ' .. ARGV[7])
end
return first
