-- Acquires several locks: all of them or none.
--
-- KEYS   for each lock: the lock, and if a block is requested, its fence; see `acquire.lua`
-- ARGV   ttl in ms, block (0: no fencing tokens), retention, the prefix of the holder ids, the rest of each of them, separated
--        by commas
-- Reply  for each lock, the reply of `acquire.lua`, or the text of an error, or a status:
--        SPARED    not taken, because another lock was not granted; if the holder had it already, it still has it
--
-- Twice is harmless: `acquire.lua` is, and a copy that finds another holder changes nothing.

-- @include common, arguments, acquire_function

local fenced = ARGV[2] ~= '0'
ttl, block, retention = ARGV[1], 1, ARGV[3]
whole(ttl, 1, LONGEST_TTL)
span = whole(retention, 0, 9007199254740991) * 50
if fenced then
  block = whole(ARGV[2], 1, 1000000)
end

local locks, fences, holders, reply = {}, {}, {}, {}
for rest in string.gmatch(ARGV[5], '[^,]+') do
  holders[#holders + 1] = ARGV[4] .. rest
end
for at = 1, #holders do
  locks[at], fences[at] = KEYS[at], nil
  if fenced then
    locks[at], fences[at] = KEYS[2 * at - 1], KEYS[2 * at]
  end
end

-- @include look

local spared, free, refused = { ok = 'SPARED' }, {}, false
doing = 'EXISTS'
vacant = call('EXISTS', unpack(locks)) == 0
if not vacant then
  for at, lock in ipairs(locks) do
    local looked, is_free, verdict = pcall(look, lock, holders[at])
    if not looked then
      verdict, is_free = message(is_free), false
    end
    free[at], reply[at] = is_free, verdict or spared
    refused = refused or verdict
  end
  if refused then
    return reply
  end
end

for at, lock in ipairs(locks) do
  local granted, verdict = pcall(acquire, lock, fences[at], holders[at])
  if not granted then
    local text = message(verdict)
    for other, earlier in ipairs(locks) do
      if other >= at then
        reply[other] = spared
      elseif vacant or free[other] then
        -- This call made it.
        local deleted = try('DEL', earlier)
        reply[other] = type(deleted) == 'table' and message(deleted) or spared
      else
        -- An earlier copy has taken it, which may have been answered.
        reply[other] = spared
      end
    end
    reply[at] = text
    return reply
  end
  reply[at] = verdict
end
return reply
