-- Acquires a lock for a request that is alone in its call: the machinery of `batch.lua` costs more than the commands.
-- `acquire.lua` follows.
--
-- KEYS   lock    hash of one field: holder id -> hold count
--        fence   string: the last reserved fencing token; only if a block is requested
-- ARGV   holder id, ttl in ms; if there is a fence: block and retention
-- Reply  the reply of `acquire.lua`
--
-- Twice is harmless, because `acquire.lua` is.

local lock, fence, holder, now, newest, vacant = KEYS[1], KEYS[2], ARGV[1], nil, nil, false
local ttl, block, retention = ARGV[2], tonumber(ARGV[3]), ARGV[4]
local number, kept = tonumber(ttl), tonumber(retention)
if not (number and number % 1 == 0 and number >= 1 and number <= LONGEST_TTL)
  or fence and not (block and block % 1 == 0 and block >= 1 and block <= 1000000
    and kept and kept % 1 == 0 and kept >= 0 and kept <= 9007199254740991) then
  return refusal('LEASEHOLD bad argument: ' .. table.concat(ARGV, ' ', 2))
end
