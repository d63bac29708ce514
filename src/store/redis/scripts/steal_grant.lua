-- Writes what `steal.lua` has granted.
--
-- Reply  the first fencing token
--
-- Twice is harmless: the note is the same, and times to live are absolute.

if fresh then
  leave_note(note, 'steal', from, holder, ARGV[4], ARGV[5], string.format('%d', first))
end
if fresh then
  doing = 'HSET'
  call('HSET', lock, holder, '1')
end
doing = 'PEXPIRE'
call('PEXPIRE', lock, ttl)
if fresh then
  -- In this order the hash is never empty, so it keeps its time to live; and no HSET comes after PEXPIRE, which takes the key
  -- away if the server stood still in it.
  doing = 'HDEL'
  call('HDEL', lock, from)
  send_hint(ARGV[6], from, 'verify ' .. ARGV[7])
end
return first
