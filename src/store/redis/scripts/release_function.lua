-- The function `release`, for the scripts that do more than to release one lock.
--
-- Reply  see `release.lua`
--
-- Twice is harmless, because `release.lua` is.

local function release(lock, holder)
  local braced = string.find(lock, '{', 1, true)
  -- @include release, wake
end
