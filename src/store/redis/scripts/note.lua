-- What an act on the hold of another leaves: a note for the old holder, and a hint for its manager. `noted.lua` comes before.
--
-- note    hash: `act` -> want, steal or force; `from` -> the old holder ids, separated by spaces; `to` -> the new holder id;
--         `by`, `why` -> the author and its reason; `at` -> when, in ms; `fence` -> the fencing token of the new holder
-- inbox   the beginning of the channels of managers

-- The time in ms for which a note is kept.
local NOTE_KEPT = '86400000'

-- Leaves a note. It never stays without a time to live.
local function leave_note(note, act, from, to, by, why, fence)
  doing = 'TIME'
  local time = call('TIME')
  doing = 'HSET'
  local written = try('HSET', note, 'act', act, 'from', from, 'to', to, 'by', by, 'why', why, 'fence', fence,
    'at', string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000)))
  if type(written) == 'table' then
    -- The server does not name the key.
    error(string.find(written.err, 'WRONGTYPE', 1, true) and redis.error_reply('WRONGTYPE the key ' .. note .. ' holds no note') or written)
  end
  doing = 'PEXPIRE'
  local kept = try('PEXPIRE', note, NOTE_KEPT)
  if kept ~= 1 then
    call('DEL', note)
    error(kept, 0)
  end
end

-- Sends a hint to the manager of a holder. In a cluster the caller does it, because the channel is in another slot.
local function send_hint(inbox, holder, hint)
  local manager = string.match(holder, '^(.-):')
  if publish == 'PUBLISH' and manager then
    try(publish, inbox .. manager, hint)
  end
end
