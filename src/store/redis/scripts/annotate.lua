-- Writes the description of a holder beside its lock, or deletes it, and wakes observers. The part before defines publish.
--
-- KEYS   lock      hash of one field: holder id -> hold count
--        metadata  hash: holder -> holder id; rev -> number of the write; and the fields of the description
-- ARGV   holder id, time to live in ms (0: delete), channel of the observers, number of the write, then fields and values
-- Reply  1 if the holder has the lock, 0 if not; of a deletion, 1 if the holder had written anything, 0 if not
--
-- Twice is harmless: a write of the same holder id with a number that is not larger changes nothing, a holder id that is not
-- in the lock's hash writes nothing, and only what the same holder id has written is deleted.

-- @include common, arguments, publish, holds

local function run()
  local lock, metadata, holder = KEYS[1], KEYS[2], ARGV[1]
  local ttl, number = whole(ARGV[2], 0, LONGEST_TTL), whole(ARGV[4], 0, 9007199254740991)

  -- Returns a field of what is there. The server does not name a key that is of another type.
  local function written(field)
    doing = 'HGET'
    local text = try('HGET', metadata, field)
    if type(text) == 'table' then
      error(string.find(text.err, 'WRONGTYPE', 1, true) and redis.error_reply('WRONGTYPE the key ' .. metadata .. ' holds no metadata') or text)
    end
    return text
  end

  -- A message is only a hint: its failure must not turn what was done into an error.
  local function report()
    try(publish, ARGV[3], ARGV[4])
  end

  if ttl == 0 then
    if written('holder') ~= holder then
      return 0
    end
    doing = 'DEL'
    call('DEL', metadata)
    report()
    return 1
  end
  if not holds(lock, holder) then
    return 0
  end
  if written('holder') == holder and (tonumber(written('rev')) or 0) >= number then
    return 1
  end
  local words, kept = { 'holder', holder, 'rev', ARGV[4] }, { holder = true, rev = true }
  for i = 5, #ARGV do
    words[i] = ARGV[i]
    if i % 2 == 1 then
      kept[ARGV[i]] = true
    end
  end
  doing = 'HGETALL'
  local before = call('HGETALL', metadata)
  -- The key is never away in between: a node whose slot is being moved would refuse to make it again.
  doing = 'HSET'
  call('HSET', metadata, unpack(words))
  local done, caught = pcall(function()
    doing = 'PEXPIRE'
    call('PEXPIRE', metadata, string.format('%d', ttl))
  end)
  if not done then
    -- No key stays without a time to live.
    try('DEL', metadata)
    error(caught, 0)
  end
  doing = 'HDEL'
  for i = 1, #before, 2 do
    if not kept[before[i]] then
      call('HDEL', metadata, before[i])
    end
  end
  report()
  return 1
end

-- @include protected_call
