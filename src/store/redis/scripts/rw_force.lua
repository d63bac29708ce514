-- Takes a read-write lock away from all its holders, and wakes waiters. `rw_common.lua`, `rw_wake.lua` and `note.lua` come
-- before.
--
-- KEYS   lock
-- ARGV   none; or: act, author, reason, inbox, name
-- Reply  1 if it was held, 0 if not; then the holders that a note was left for, 100 at most
--
-- Twice is harmless: the second run finds nothing, or does what was requested again. The timeout keys of readers expire by
-- themselves, and mean nothing without the hash. A note that the server refuses is left out.

-- @include common, arguments, publish, rw_common, rw_wake, noted, note

local function run()
  local lock, holders, reported = KEYS[1], {}, {}
  local mode = mode_of(lock)
  if ARGV[1] and mode then
    doing = 'HKEYS'
    for _, field in ipairs(call('HKEYS', lock)) do
      if field ~= 'mode' and #holders < 100 then
        holders[#holders + 1] = string.gsub(field, ':write$', '')
      end
    end
  end
  doing = 'DEL'
  call('DEL', lock)
  if #holders > 0 then
    pcall(leave_note, note_of(lock), ARGV[1], table.concat(holders, ' '), '', ARGV[2], ARGV[3], '0')
    for _, holder in ipairs(holders) do
      local manager = string.match(holder, '^(.-):')
      if manager and not reported[manager] then
        reported[manager] = true
        send_hint(ARGV[4], holder, 'verify ' .. ARGV[5])
      end
    end
  end
  wake(lock, '1')
  return { mode and 1 or 0, unpack(holders) }
end

-- @include protected_call
