-- Returns the holders of a read-write lock, and how many connections listen for it.
--
-- KEYS   lock
-- ARGV   channel of the lock; NUMSUB or SHARDNUMSUB
-- Reply  the number of subscribers (-1: the server does not tell), then for each holder: its id, read or write, its count, its time to live in ms
--
-- Twice is harmless: it writes nothing.

-- @include common, arguments, rw_common

local function run()
  local lock, reply, flat = KEYS[1], {}, { -1 }
  local counted = try('PUBSUB', ARGV[2], ARGV[1])
  if counted[2] then
    flat[1] = counted[2]
  end
  local mode = mode_of(lock)
  if not mode then
    return flat
  end
  doing = 'PTTL'
  local left = call('PTTL', lock)
  doing = 'HGETALL'
  local fields = call('HGETALL', lock)
  for i = 1, #fields, 2 do
    local field, count = fields[i], fields[i + 1]
    if string.sub(field, -6) == ':write' then
      reply[#reply + 1] = { string.sub(field, 1, -7), 'write', count, left }
    elseif field ~= 'mode' then
      local own = time_of(lock, field, tonumber(count) or 1, LONGEST_TTL)
      -- One that has expired, with 0, is there until another request removes it: a late renewal keeps it.
      reply[#reply + 1] = { field, 'read', count, own }
    end
  end
  for _, holder in ipairs(reply) do
    for _, word in ipairs(holder) do
      flat[#flat + 1] = word
    end
  end
  return flat
end

-- @include protected_call
