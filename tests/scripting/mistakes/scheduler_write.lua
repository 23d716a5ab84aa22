-- ranks: 1
local mh = require "moonhalo"
local net = mh.nn.Linear(3, 2)
local schedule = mh.optim.StepLR(mh.optim.SGD(net:parameters(), {lr = 0.1}), 10)
schedule.gama = 0.5
--[==[
scheduler_write.lua:5: StepLR: no field 'gama' to write; did you mean 'gamma'?
  have  base_lrs, gamma, last_epoch, last_lrs, max_lrs, num_training_steps, optimizer, step_size
  fix   keep what is yours in a variable of your own
  5 | schedule.gama = 0.5
]==]
