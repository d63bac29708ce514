-- Runs acquires and releases that were waiting for the same connection, each on its own.
--
-- KEYS   those of the items, in their order
-- ARGV   those of the steps, in their order; then the steps, a letter for each:
--        S  set what the acquires that follow have in common; no item   ttl, count, block, retention
--        A  acquire without a fencing token                             token
--        F  acquire with one                                            token
--        R  release, giving back                                        token
--        L  release, lowering the count                                 token, count
-- Reply  for each item two values: those of acquire or release, or an error's text and 0
--
-- Twice is harmless, since each item is. An item that fails spoils no other.

local keys, args, byte = KEYS, ARGV, string.byte
local steps, reply = args[#args], {}
local at, key, arg, filled = 0, 0, 0, 0
local S, F, R, A = byte('SFRA', 1, 4)

-- Runs what is left. An error ends it with the places behind the item that met it.
local function run()
  while at < #steps do
    at = at + 1
    local step = byte(steps, at)
    if step == S then
      arg = arg + 4
      set(args[arg - 3], args[arg - 2], args[arg - 1], args[arg])
      unset = nil
    else
      key, arg, filled = key + 1, arg + 1, filled + 2
      if step == F then
        key = key + 1
        reply[filled - 1], reply[filled] = acquire(keys[key - 1], keys[key], args[arg])
      elseif step == R then
        reply[filled - 1], reply[filled] = release(keys[key], args[arg])
      elseif step == A then
        reply[filled - 1], reply[filled] = acquire(keys[key], nil, args[arg])
      else
        arg = arg + 1
        reply[filled - 1], reply[filled] = release(keys[key], args[arg - 1], args[arg])
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
    reply[filled - 1], reply[filled] = message(caught), 0
  end
end
