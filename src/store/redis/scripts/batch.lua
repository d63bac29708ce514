-- Runs acquires and releases that were waiting for the same connection, each on its own.
--
-- KEYS   those of the items, in their order
-- ARGV   for each item: 'A' and the arguments of acquire, or 'R' and those of release
-- Reply  for each item two values: those of acquire or release, or an error's text and 0
--
-- Twice is harmless, since each item is. An item that fails spoils no other.

local key, arg, reply = 1, 1, {}
while arg <= #ARGV do
  local ok, code, value
  if ARGV[arg] == 'A' then
    ok, code, value = pcall(acquire, KEYS[key], KEYS[key + 1], ARGV[arg + 1], ARGV[arg + 2],
      ARGV[arg + 3], ARGV[arg + 4], ARGV[arg + 5])
    key, arg = key + 2, arg + 6
  else
    ok, code, value = pcall(release, KEYS[key], ARGV[arg + 1], ARGV[arg + 2], ARGV[arg + 3])
    key, arg = key + 1, arg + 4
  end
  if not ok then
    code, value = message(code), 0
  end
  reply[#reply + 1] = code
  reply[#reply + 1] = value
end
return reply
