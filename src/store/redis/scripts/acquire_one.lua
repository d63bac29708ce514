-- The end of `acquire_alone.lua`, which says what KEYS and ARGV are.
--
-- Reply  see `acquire.lua`
--
-- Twice is harmless, because `acquire.lua` is.

local lock, fence, holder, ttl = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local block, retention, span, now, newest, vacant = 1, '0', 0, nil, nil, false
-- Arithmetic takes half as long as tonumber. It fails here, before anything is written, if one is no number at all.
local number, kept = ttl * 1, 0
if fence then
  block, retention = ARGV[3] * 1, ARGV[4]
  kept = retention * 1
  span = kept * 50
end
if not (number % 1 == 0 and number >= 1 and number <= LONGEST_TTL
  and block % 1 == 0 and block >= 0 and block <= 1000000
  and kept % 1 == 0 and kept >= 0 and kept <= 9007199254740991) then
  return redis.error_reply('LEASEHOLD bad argument: ' .. table.concat(ARGV, ' ', 2))
end

-- @include acquire, propose, fence, grant
