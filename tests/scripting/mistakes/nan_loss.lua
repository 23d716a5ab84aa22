-- status: 0
local mh = require "moonhalo"
for step = 1, 4 do
  mh.log{step = step, best = math.huge, loss = step > 2 and 0 / 0 or 1.5}
end
--[==[
nan_loss.lua:4: warning: log: 'best' is inf at step 1, for which --log has null
  fix   look at the steps before: a smaller learning rate, opt:clip_gnorm, or data without missing values
nan_loss.lua:4: warning: log: 'loss' is nan at step 3, for which --log has null
  fix   look at the steps before: a smaller learning rate, opt:clip_gnorm, or data without missing values
]==]
