-- Runs the function of the part before, and returns its reply, or the text of what it met as an error.

local done, reply = pcall(run)
return done and reply or redis.error_reply(message(reply))
