-- Extends many locks that are still held by their holders.
--
-- KEYS   for each item: lock, and its fence if its step is F
-- ARGV   ttl in ms, the time in ms to remember fencing tokens once the clock has passed them; the arguments of the
--        steps, in their order; the holder ids without their prefix, separated by commas; then the steps, a letter
--        for each:
--        M  set the prefix of the holder ids that follow; no item    prefix
--        T  set the time to live of the items that follow; no item   ttl in ms
--        F  renew, and remember the fencing token for longer
--        L  renew
-- Reply  0 alone if all were renewed; else for each item: 0 renewed; -1 gone; -2 taken; -3 stolen; -4 forced open; or the
--        text of an error
--
-- Twice is harmless: the time to live is set, not added to. It never makes a key. The PEXPIRE of a lock has no GT, so that
-- it corrects a time to live that another client has removed or extended.

-- @include common, arguments, noted, fence_keep

local keys, args, byte = KEYS, ARGV, string.byte
local ttl, retention = args[1], args[2]
local steps, tail, head = args[#args], string.gmatch(args[#args - 1], '[^,]+'), ''
local at, key, arg, item, reply, all = 0, 0, 2, 0, {}, true
local M, F, T, own = byte('MFT', 1, 3)
whole(ttl, 1, LONGEST_TTL)

-- Renews the remaining items. An error ends it, with the position of the item that met it.
local function run()
  while at < #steps do
    at = at + 1
    local step = byte(steps, at)
    if step == M then
      arg = arg + 1
      head = args[arg]
    elseif step == T then
      arg = arg + 1
      ttl, own = args[arg], true
    else
      key, item = key + 1, item + 1
      local lock, fence = keys[key], nil
      if step == F then
        key = key + 1
        fence = keys[key]
      end
      local holder = head .. tail()
      if own then
        whole(ttl, 1, LONGEST_TTL)
      end
      -- @include mine
      if mine then
        doing = 'PEXPIRE'
        call('PEXPIRE', lock, ttl)
        if fence then
          keep_fence(fence, retention)
        end
        reply[item] = 0
      else
        all, doing = false, 'EXISTS'
        reply[item] = noted(lock, holder) or call('EXISTS', lock) == 0 and -1 or -2
      end
    end
  end
end

while true do
  local done, caught = pcall(run)
  if done then
    return all and { 0 } or reply
  end
  all, reply[item] = false, message(caught)
end
