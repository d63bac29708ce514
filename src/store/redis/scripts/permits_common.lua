-- The common part of the scripts of semaphores, in the layout of Redisson's `RPermitExpirableSemaphore`.
--
-- free    string: the number of free permits
-- out     sorted set: permit id, 16 bytes -> the server's time in ms at which it expires; 0 if it was released while the
--         counter was on another server
-- sizes   hash: its fields are the sizes that the semaphore had before a resize; not known to Redisson
--
-- The size of a semaphore is the number of free permits and of those that are out, expired or not, so it is kept nowhere
-- else. Redis does not roll back, and a script that ends between the counter and the set changes the size. So each script reads
-- first. Then it checks that each command that it needs for its changes is permitted, or calls it in a way that changes
-- nothing. The changes come last. Full memory refuses only the first command that writes, and not one that only removes.
--
-- The ids of a holder begin with the same 14 bytes, which it sends. The number of the permit follows, in 2 bytes.

-- In ms. For what is kept as long as a key without a time to live.
local FOREVER = 9007199254740991
-- The most permits of a call, which takes some thousand arguments at most.
local MOST_PERMITS = 3000

-- Returns the ids of a holder's permits.
local function ids_of(head, take)
  local ids = {}
  for i = 1, take do
    ids[i] = head .. string.char((i - i % 256) / 256, i % 256)
  end
  return ids
end

-- Returns the number of free permits; nil if there is no semaphore.
local function free_of(free)
  doing = 'GET'
  local text = call('GET', free)
  if not text then
    return nil
  end
  local number = tonumber(text)
  if not number or number % 1 ~= 0 or math.abs(number) > FOREVER then
    error(redis.error_reply('WRONGTYPE the value under the name is no number of permits'))
  end
  return number
end

-- Returns the server's time in ms.
local function clock()
  doing = 'TIME'
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Raises the server's error if a command that comes later is not permitted. In a form that changes nothing, in case it is.
local function need(command, ...)
  doing = command
  if not redis.acl_check_cmd(command, ...) then
    call(command, ...)
  end
end

-- Returns how many of these ids are out, how many of those have expired, and how many of these were released.
local function look_up(out, ids, now)
  doing = 'ZMSCORE'
  local there, expired, released = 0, 0, 0
  for _, ends in ipairs(call('ZMSCORE', out, unpack(ids))) do
    if ends then
      there = there + 1
      expired = expired + (tonumber(ends) <= now and 1 or 0)
      released = released + (tonumber(ends) == 0 and 1 or 0)
    end
  end
  return there, expired, released
end

-- Puts these ids among those that are out, or sets when they expire. Returns how many were not there. `how` is XX if it adds
-- none.
local function put(out, ids, ends, how)
  doing = 'ZADD'
  local words = { how }
  for _, id in ipairs(ids) do
    words[#words + 1] = ends
    words[#words + 1] = id
  end
  return call('ZADD', out, unpack(words))
end

-- Keeps a key for at least so many ms, and returns how many it has left: -1 if it is kept forever, and stays so; -2 if there is
-- no key.
local function keep(key, ms)
  doing = 'PTTL'
  local left = call('PTTL', key)
  if left < 0 or left >= ms then
    return left
  end
  doing = 'PEXPIRE'
  call('PEXPIRE', key, string.format('%d', ms))
  return ms
end

-- Keeps the permits that are out for as long as the counter, which has so many ms left: it would miss them for good.
local function keep_out(out, left)
  return keep(out, left == -1 and FOREVER or left)
end
