-- Finds the fencing token that an earlier run has reserved for a holder that has the lock: first, which stays 0 if there is none.
-- A proposal, with a block of 0, has none. The part before defines it, and fence, block and last; `acquire.lua` says what they are.
--
-- Reply  none: the part behind it uses first
--
-- Twice is harmless: it writes nothing.

if fence and block > 0 then
  doing = 'GET'
  last = tonumber(call('GET', fence))
  -- Another client may have set it to less than a block. A comparison with NaN is false.
  if last and last >= block and last <= GROWS then
    first = last - last % 1 - block + 1
  end
end
