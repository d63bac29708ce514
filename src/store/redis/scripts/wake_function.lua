-- The function `wake`, for the scripts that wake the waiters of a lock under a condition.
--
-- Reply  see `wake.lua`
--
-- Twice is harmless: a wake-up may come twice.

local function wake(lock)
  local braced = string.find(lock, '{', 1, true)
  -- @include wake
end
