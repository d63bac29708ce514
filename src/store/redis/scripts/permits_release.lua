-- Gives the permits of a holder back, and wakes waiters.
--
-- KEYS   free, out: see `permits_common.lua`. Or out alone, if a cluster is moving the slot and the counter is elsewhere: the
--        permits count as expired from then on, so that the next acquire that needs them gives them back
-- ARGV   the number of permits, what the ids begin with
-- Reply  the number of subscribers that were woken   released
--        -3                                          released, but the server refused to wake waiters
--        -1                                          none of them was out
--
-- Twice is harmless: the second run finds none of them, or those that have expired.

-- @include common, arguments, publish, permits_common, permits_wake

local function run()
  local free, out, ids = KEYS[1], KEYS[2], ids_of(ARGV[2], whole(ARGV[1], 1, MOST_PERMITS))
  if out then
    return release_permits(free, out, free_of(free), ids)
  end
  out = free
  local there = look_up(out, ids, 0)
  if there == 0 then
    return -1
  end
  -- Changes nothing, but as the first command that writes it lets ZADD pass in full memory.
  doing = 'ZREM'
  call('ZREM', out, '')
  put(out, ids, 0, 'XX')
  return wake(string.gsub(out, ':timeout$', ''), there)
end

-- @include protected_call
