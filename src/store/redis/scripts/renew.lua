-- Extends many locks that are still held by their tokens.
--
-- KEYS   for each item: lock, and its fence if its step is F
-- ARGV   ttl in ms, for how long in ms to remember fencing tokens from when the clock has passed them; those of
--        the steps, in their order; what is left of the tokens, with a comma between; then the steps, a
--        letter for each:
--        M  set what the tokens that follow begin with; no item    that
--        F  renew, and prolong the memory of the fencing token
--        L  renew
-- Reply  0 alone if all were renewed; else for each item: 0 renewed; -1 gone; -2 taken; or an error's text
--
-- Twice is harmless: the time to live is set, not added to. It never makes a key. PEXPIRE without GT, so
-- that a time to live that someone removed or prolonged is put right.

local keys, args, byte = KEYS, ARGV, string.byte
local ttl, retention = args[1], args[2]
local steps, tail, head = args[#args], string.gmatch(args[#args - 1], '[^,]+'), ''
local at, key, arg, item, reply, all = 0, 0, 2, 0, {}, true
local M, F = byte('MF', 1, 2)
whole(ttl, 1, LONGEST_TTL)

-- The server's time in microseconds, asked once in a call.
local now

-- Renews what is left. An error ends it with the place of the item that met it.
local function run()
  while at < #steps do
    at = at + 1
    local step = byte(steps, at)
    if step == M then
      arg = arg + 1
      head = args[arg]
    else
      key, item = key + 1, item + 1
      local lock, fence = keys[key], nil
      if step == F then
        key = key + 1
        fence = keys[key]
      end
      doing = 'HEXISTS'
      local token = head .. tail()
      if call('HEXISTS', lock, token) == 1 then
        if call('HEXISTS', lock, 'mode') == 1 then
          -- Redisson grants one over a lock, which is left to it: with a field of ours in it, a writer's last unlock
          -- would wake nobody.
          doing = 'HDEL'
          call('HDEL', lock, token)
          error(READ_WRITE, 0)
        end
        doing = 'PEXPIRE'
        call('PEXPIRE', lock, ttl)
        if fence then
          -- A token that is ahead of the clock is remembered for longer by as much, and one that is remembered
          -- for ever stays so. What is none is not ours.
          local last, kept = grown(try('GET', fence) or nil), retention
          if last and not now then
            doing = 'TIME'
            local time = call('TIME')
            now, doing = time[1] * 1000000 + time[2], 'PEXPIRE'
          end
          if last and last >= now + 1000 then
            kept = format('%d', retention + (last - now) / 1000)
          end
          if last then
            call('PEXPIRE', fence, kept, 'XX')
          end
        end
        reply[item] = 0
      else
        all, doing = false, 'EXISTS'
        reply[item] = call('EXISTS', lock) == 0 and -1 or -2
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
