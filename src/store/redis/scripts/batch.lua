-- Runs acquires and releases that were waiting for the same connection, each on its own.
--
-- KEYS   those of the items, in their order
-- ARGV   those of the steps, in their order; what is left of the tokens, with a comma between; then the
--        steps, a letter for each:
--        S  set what the acquires that follow have in common; no item   ttl, count, block, retention
--        M  set what the tokens that follow begin with; no item         that
--        A  acquire without a fencing token
--        F  acquire with one
--        R  release, giving back
--        L  release, lowering the count                                 count
-- Reply  for each item: that of acquire or release, or an error's text
--
-- Twice is harmless, since each item is. An item that fails spoils no other.

local keys, args, byte = KEYS, ARGV, string.byte
local steps, tail, head = args[#args], string.gmatch(args[#args - 1], '[^,]+'), ''
local at, key, arg, item, reply = 0, 0, 0, 0, {}
local S, M, F, R, A = byte('SMFRA', 1, 5)

-- Runs what is left. An error ends it with the places behind the item that met it.
local function run()
  while at < #steps do
    at = at + 1
    local step = byte(steps, at)
    if step == S then
      arg = arg + 4
      set(args[arg - 3], args[arg - 2], args[arg - 1], args[arg])
      unset = nil
    elseif step == M then
      arg = arg + 1
      head = args[arg]
    else
      key, item = key + 1, item + 1
      local token = head .. tail()
      if step == F then
        key = key + 1
        reply[item] = acquire(keys[key - 1], keys[key], token)
      elseif step == R then
        reply[item] = release(keys[key], token)
      elseif step == A then
        reply[item] = acquire(keys[key], nil, token)
      else
        arg = arg + 1
        reply[item] = release(keys[key], token, args[arg])
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
