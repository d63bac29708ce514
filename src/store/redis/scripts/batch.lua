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

local steps = ARGV[#ARGV]
local key, arg, filled, reply = 1, 1, 0, {}
for i = 1, #steps do
  local step = string.sub(steps, i, i)
  if step == 'S' then
    local ok, caught = pcall(set, ARGV[arg], ARGV[arg + 1], ARGV[arg + 2], ARGV[arg + 3])
    unset = not ok and caught
    arg = arg + 4
  else
    local ok, code, value
    if step == 'F' then
      ok, code, value = pcall(acquire, KEYS[key], KEYS[key + 1], ARGV[arg])
      key = key + 1
    elseif step == 'A' then
      ok, code, value = pcall(acquire, KEYS[key], nil, ARGV[arg])
    elseif step == 'R' then
      ok, code, value = pcall(release, KEYS[key], ARGV[arg])
    else
      ok, code, value = pcall(release, KEYS[key], ARGV[arg], ARGV[arg + 1])
      arg = arg + 1
    end
    key, arg = key + 1, arg + 1
    if not ok then
      code, value = message(code), 0
    end
    reply[filled + 1], reply[filled + 2] = code, value
    filled = filled + 2
  end
end
return reply
