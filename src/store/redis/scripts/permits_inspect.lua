-- Returns the permits that are out, and how many connections listen for permits.
--
-- KEYS   free, out: see `permits_common.lua`
-- ARGV   channel of the semaphore; NUMSUB or SHARDNUMSUB
-- Reply  the size (-1: no semaphore), the number of subscribers (-1: the server does not tell), then for each permit: its id in hexadecimal digits, its time to live in ms (-1: forever)
--
-- Twice is harmless: it writes nothing.

-- @include common, arguments, permits_common

local function run()
  local free, now = free_of(KEYS[1]), clock()
  doing = 'ZRANGE'
  local all, reply, used = call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES'), { -1, -1 }, 0
  local counted = try('PUBSUB', ARGV[2], ARGV[1])
  if counted[2] then
    reply[2] = counted[2]
  end
  for i = 1, #all, 2 do
    local ends = tonumber(all[i + 1])
    used = used + 1
    if ends > now then
      reply[#reply + 1] = string.gsub(all[i], '.', function(byte)
        return string.format('%02x', string.byte(byte))
      end)
      reply[#reply + 1] = ends - now > LONGEST_TTL and -1 or ends - now
    end
  end
  if free then
    reply[1] = free + used
  end
  return reply
end

-- @include protected_call
