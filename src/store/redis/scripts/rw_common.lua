-- The common part of the scripts of read-write locks, in the layout of Redisson's `RReadWriteLock`.
--
-- lock    hash: `mode` -> read or write; holder id -> 1 for a reader; holder id .. ':write' -> hold count of the writer
-- {lock}:holder id:rwlock_timeout:1   string with the time to live of one reader, whose value is its fencing token, or 1 if it
--         has none. Redisson counts on for each nested read, writes 1, and reads no value

-- The refusal of a plain lock or another hash.
local NOT_READ_WRITE = 'WRONGTYPE a lock that is no read-write lock is under the name'

-- Returns `kind` .. lock, with the braces that keep the keys of a name together in a cluster.
local function tagged(lock)
  if string.find(lock, '{', 1, true) then
    return lock
  end
  return '{' .. lock .. '}'
end

-- Returns the mode of a lock; nil if it is free.
local function mode_of(lock)
  doing = 'HGET'
  local mode = call('HGET', lock, 'mode')
  if mode then
    return mode
  end
  doing = 'EXISTS'
  if call('EXISTS', lock) == 1 then
    error(redis.error_reply(NOT_READ_WRITE))
  end
  return nil
end

-- The most nested reads of a reader of which each is looked at: 4 ms of the server's time.
local MOST_NESTED = 10000

-- Returns the longest time to live in ms that a reader has, or the first one that is `enough`. Each of its reads has one, and
-- the last ones mostly have the longest. A reader with too many counts as alive for as long as the hash.
local function time_of(lock, field, count, enough)
  local left, timeout = 0, tagged(lock) .. ':' .. field .. ':rwlock_timeout:'
  doing = 'PTTL'
  if count > MOST_NESTED then
    left = call('PTTL', lock)
    return left < 0 and LONGEST_TTL or left
  end
  for i = count, 1, -1 do
    left = math.max(left, call('PTTL', timeout .. i))
    if left >= enough then
      return left
    end
  end
  return left
end

-- Returns the longest time to live in ms of the readers but `except`, or the first one that is `enough`. Removes those that
-- have none before that, if `prune` is set. Their keys follow from the fields, so they are not among KEYS: the layout leaves
-- no other way. It fails if one may be on another server.
local function readers_left(lock, except, prune, enough)
  doing = 'HKEYS'
  local best = 0
  for _, field in ipairs(call('HKEYS', lock)) do
    if field ~= 'mode' and field ~= except and string.sub(field, -6) ~= ':write' then
      doing = 'HGET'
      local left = time_of(lock, field, tonumber(call('HGET', lock, field)) or 1, enough)
      if left == 0 then
        -- While a cluster moves the slot, a key that is missing here may be on the other server. Then a command on two keys
        -- is refused.
        doing = 'EXISTS'
        call('EXISTS', lock, tagged(lock) .. ':' .. field .. ':rwlock_timeout:1')
      end
      if left == 0 and prune then
        doing = 'HDEL'
        call('HDEL', lock, field)
      end
      best = math.max(best, left)
      if best >= enough then
        return best
      end
    end
  end
  return best
end
