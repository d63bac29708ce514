-- The function `acquire`, for the scripts that grant more than one lock, or grant one under a condition.
--
-- Reply  see `acquire.lua`
--
-- Twice is harmless, because `acquire.lua` is.

-- All acquires of a call share these: see `acquire.lua`.
local ttl, block, retention, span, now, newest, vacant

local function acquire(lock, fence, holder)
  -- @include acquire, propose, fence, grant
end
