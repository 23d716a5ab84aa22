-- status: 0
local mh = require "moonhalo"
local opt = mh.optim.SGD(mh.nn.Linear(3, 2):parameters(), {lr = 0.1})
if mh.rank() == 0 then
  print({width = 8, lr = 1e-3, steps = {-1, 0}}, {})
  print(mh.optim.StepLR(opt, 10))
  print(mh.files)
end
--[==[
{lr = 0.001, steps = {-1, 0}, width = 8}    {}
StepLR {base_lrs = {0.1}, gamma = 0.1, last_epoch = 0, optimizer = Optimizer, step_size = 10}
files: exists, make_folder, read_npy, write_npy, write_png
]==]
