-- Calls `run`, the function of the script before. Returns its reply, or its error as text.

local done, reply = pcall(run)
return done and reply or redis.error_reply(message(reply))
