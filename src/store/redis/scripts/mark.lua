-- The beginning of the scripts that leave a mark: reads the arguments into lock, holder and mark, and checks them.
--
-- KEYS   lock
-- ARGV   holder id, the mark, the time in ms
-- Reply  none: the part behind it uses them
--
-- Twice is harmless: it writes nothing.

local lock, holder, mark = KEYS[1], ARGV[1], ARGV[2]
whole(ARGV[3], 1, LONGEST_TTL)
if mark ~= 'leasehold:done' and mark ~= 'leasehold:kept' then
  error('LEASEHOLD bad argument ' .. mark, 0)
end
