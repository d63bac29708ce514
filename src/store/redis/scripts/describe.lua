-- Keeps the description of a manager, or deletes it.
--
-- KEYS   manager   hash: the fields of the description
-- ARGV   time to live in ms (0: delete), then fields and values
-- Reply  1 if it is kept, 0 if it was deleted
--
-- Twice is harmless: it writes the same fields, and deletes what may be gone.

-- @include common, arguments

local function run()
  local key, ttl = KEYS[1], whole(ARGV[1], 0, LONGEST_TTL)
  if ttl == 0 then
    doing = 'DEL'
    call('DEL', key)
    return 0
  end
  doing = 'HSET'
  call('HSET', key, unpack(ARGV, 2))
  local done, caught = pcall(function()
    doing = 'PEXPIRE'
    call('PEXPIRE', key, string.format('%d', ttl))
  end)
  if not done then
    -- No key stays without a time to live.
    try('DEL', key)
    error(caught, 0)
  end
  return 1
end

-- @include protected_call
