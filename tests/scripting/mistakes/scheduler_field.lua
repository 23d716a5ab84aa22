-- ranks: 1
local mh = require "moonhalo"
local net = mh.nn.Linear(3, 2)
local opt = mh.optim.SGD(net:parameters(), {lr = 0.1})
local schedule = mh.optim.lr_scheduler.StepLR(opt, 10)
print(schedule.last_epoc)
--[==[
scheduler_field.lua:6: StepLR: no field or method 'last_epoc'; did you mean 'last_epoch'?
  have  base_lrs, gamma, get_last_lr, last_epoch, last_lrs, load_state_dict, max_lrs, num_training_steps, optimizer, state_dict, step, step_size
  6 | print(schedule.last_epoc)
]==]
