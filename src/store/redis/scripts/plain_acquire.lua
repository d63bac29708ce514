-- Acquires a lock that is a string, as `acquire.lua` does one that is a hash. It takes the place of that part, with the same
-- arguments and the same reply.
--
-- lock     string: the holder id, or a mark with the time in ms for which it is kept and the holder id that released it
--
-- Reply  see `acquire.lua`. A hash is WRONGTYPE.
--
-- Twice is harmless: the second run finds its own holder id, and reads the fencing token that the first has reserved.

doing = 'GET'
local there, first, text, last = not vacant and call('GET', lock), 0, nil, nil
local free = not there
if there == holder then
  -- @include fence_again
elseif there then
  doing = 'PTTL'
  local left = call('PTTL', lock)
  if string.sub(there, 1, 15) == 'leasehold:done ' then
    return -4503599627370500 - left
  end
  return -4 - left
end
