-- Returns the managers in the line of a lock, the oldest first.
--
-- KEYS   lock, line, lapses: see `line_common.lua`
-- ARGV   none
-- Reply  for each manager: the manager, the time in microseconds that its oldest waiter has waited
--
-- Twice is harmless: it writes nothing.

-- @include common, arguments

local now
-- @include line_common

local function run()
  local waits, reply = line_of(KEYS[2], KEYS[3], '-:0'), {}
  doing = 'ZRANGE'
  local all = call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
  for i = 1, #all, 2 do
    local _, lapse = waits.place_of(all[i])
    if lapse and lapse > now then
      reply[#reply + 1] = all[i]
      reply[#reply + 1] = math.max(now - tonumber(all[i + 1]), 0)
    end
  end
  return reply
end

-- @include protected_call
