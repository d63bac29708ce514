-- Runs acquires and releases that were waiting for the same connection, each on its own.
--
-- KEYS   the keys of the items, in their order
-- ARGV   the arguments of the steps, in their order; the holder ids without their prefix, separated by commas;
--        then the steps, a letter for each:
--        S  set the common arguments of the acquires that follow; no item   ttl, block, retention
--        M  set the prefix of the holder ids that follow; no item           prefix
--        A  acquire without a fencing token
--        F  acquire with one
--        R  release
--        C  set the hold count                                              count
-- Reply  for each item: the reply of acquire or release, or the text of an error
--
-- Twice is harmless, because it is for each item. An item that fails does not affect the others.

-- @include common, arguments, publish, acquire_function, release_function

local keys, args, byte = KEYS, ARGV, string.byte
local steps, tail, head = args[#args], string.gmatch(args[#args - 1], '[^,]+'), ''
local at, key, arg, item, reply = 0, 0, 0, 0, {}
local S, M, F, R, A = byte('SMFRA', 1, 5)
-- The reason why acquires cannot run now, if there is one.
local unset = 'LEASEHOLD nothing is set'

-- Sets the common arguments of the acquires that follow, so that they are checked only once.
local function set(new_ttl, new_block, new_retention)
  whole(new_ttl, 1, LONGEST_TTL)
  span = whole(new_retention, 0, 9007199254740991) * 50
  ttl, retention = new_ttl, new_retention
  block, newest = whole(new_block, 0, 1000000), nil
  unset = nil
end

-- @include record

-- Runs the remaining steps. An error ends it, with the positions after the item that met it.
local function run()
  while at < #steps do
    at = at + 1
    local step = byte(steps, at)
    if step == S then
      arg = arg + 3
      set(args[arg - 2], args[arg - 1], args[arg])
    elseif step == M then
      arg = arg + 1
      head = args[arg]
    else
      key, item = key + 1, item + 1
      local holder, lock, fence = head .. tail(), keys[key], nil
      if step == F then
        key = key + 1
        fence = keys[key]
      end
      if step == R then
        reply[item] = release(lock, holder)
      elseif step ~= F and step ~= A then
        arg = arg + 1
        reply[item] = record(lock, holder, args[arg])
      elseif unset then
        error(unset, 0)
      else
        reply[item] = acquire(lock, fence, holder)
      end
    end
  end
end

while true do
  local done, caught = pcall(run)
  if done then
    return reply
  elseif byte(steps, at) == S then
    unset = caught
  else
    reply[item] = message(caught)
  end
end
