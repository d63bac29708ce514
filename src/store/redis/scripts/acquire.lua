-- Acquires a lock, or grants it again to the holder that has it. A script includes `propose.lua`,
-- `fence.lua` and `grant.lua` after it.
--
-- The body of `acquire_function.lua`, and the end of `acquire_alone.lua`. They define its arguments:
-- lock, a hash of one field: holder id -> hold count; fence, a string: the last reserved fencing token (nil: none is reserved); holder, the
-- id; ttl in ms; block, the number of fencing tokens to reserve (0: one is proposed, see `propose.lua`); retention, the time in ms to
-- remember the last of them (0: forever) once the clock has passed it; up to a twentieth less, and longer if the key has
-- a longer time to live or none; span, a twentieth of it in microseconds. They also define three values that all acquires of a call share: now, the server's time in microseconds;
-- newest, as text, the last fencing token of a block that begins there; and vacant: no key of a lock is there.
--
-- Reply  the first fencing token (0: none)   granted; an even one is not ahead of the clock
--        -3 or less                          held: -4 less the holder's time to live in ms, or -3 without one
--                                            less 2^52 more if the mark `leasehold:done` keeps it closed; less 2^51 more
--                                            if the holder is of a manager that lingers, whose uuid is of version 8
--        an error                            WRONGTYPE, also for a read-write lock, which can have several holders
--
-- Twice is harmless: the time to live is absolute. The second run finds its own holder id and reads the fencing
-- token that the first has reserved.

doing = 'PTTL'
local left, first, text, last = vacant and -2 or call('PTTL', lock), 0, nil, nil
local free = left == -2
if not free then
  doing = 'HEXISTS'
  if call('HEXISTS', lock, 'mode') == 1 then
    -- Redisson grants a read-write lock over a lock, which then has other holders, too.
    error(redis.error_reply(READ_WRITE))
  end
  if call('HEXISTS', lock, holder) == 0 then
    -- The only field. A user who may not ask hears nothing of it, but the mark.
    local field = try('HGETALL', lock)[1]
    if field == 'leasehold:done' or not field and call('HEXISTS', lock, 'leasehold:done') == 1 then
      return -4503599627370500 - left
    end
    if field and string.find(field, '^%x+%-%x+%-8%x+%-%x+%-%x+:') then
      return -2251799813685252 - left
    end
    return -4 - left
  end
  -- @include fence_again
end

