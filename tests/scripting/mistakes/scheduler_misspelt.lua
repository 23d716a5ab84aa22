-- ranks: 1
local mh = require "moonhalo"
local net = mh.nn.Linear(3, 2)
local opt = mh.optim.SGD(net:parameters(), {lr = 0.1})
local schedule = mh.optim.lr_scheduler.CosineAnnealing(opt, 10)
--[==[
scheduler_misspelt.lua:5: optim.lr_scheduler: no 'CosineAnnealing'; did you mean 'CosineAnnealingLR'?
  have  ChainedScheduler, ConstantLR, CosineAnnealingLR, CosineAnnealingWarmRestarts, CyclicLR, ExponentialLR, LambdaLR, LinearLR, MultiStepLR, MultiplicativeLR, OneCycleLR, PolynomialLR, ReduceLROnPlateau, SequentialLR, StepLR, get_constant_schedule_with_warmup, get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup
  5 | local schedule = mh.optim.lr_scheduler.CosineAnnealing(opt, 10)
]==]
