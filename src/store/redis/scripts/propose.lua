-- Proposes a fencing token, if the block is 0: fence is its key, and first, which becomes the proposal, is still 0. The part
-- before defines them, and block and now; `acquire.lua` says what they are. `fence.lua` comes after it, and finds no key then.
--
-- Reply  none: the part behind it uses first
--
-- Twice is harmless: it writes nothing.

if fence and block == 0 then
  if not now then
    doing = 'TIME'
    local time = call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  doing = 'GET'
  local newest_token = call('GET', fence)
  first = now
  if newest_token then
    local number = tonumber(newest_token)
    -- What is chosen is larger than this proposal, by a block at most and what others were quicker by. Every node must be able
    -- to store it, so a node that is this close to the end is alone with its trouble.
    if not (number and number <= GROWS - 100000000) then
      error(redis.error_reply('WRONGTYPE the key of the fencing token holds no number that can grow'))
    end
    first = math.max(first, number - number % 1 + 1)
  end
  fence = nil
end

