-- SPDX-License-Identifier: Apache-2.0
-- What files.py has saved after two steps, makes a third step here and is saved for Python (Y05).
-- usage: script_checkpoints.lua -- FOLDER
local mh = require "moonhalo"
local nn, optim = mh.nn, mh.optim

local function parameters(...)
  local all = {}
  for _, module in ipairs {...} do
    for _, parameter in ipairs(module:parameters()) do all[#all + 1] = parameter end
  end
  return all
end

-- Options are those of the checkpoint.
local kinds = {
  Adam = function(net) return optim.Adam(net:parameters(), {lr = 9, amsgrad = true}) end,
  AdamW = function(net) return optim.AdamW(net:parameters(), {lr = 9}) end,
  RAdam = function(net) return optim.RAdam(net:parameters(), {lr = 9}) end,
  SGD = function(net)
    return optim.SGD({{params = parameters(net[0])}, {params = parameters(net[1], net[2])}}, {lr = 9, momentum = 0.1})
  end,
}

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"ranks"})
for kind, make in pairs(kinds) do
  local net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 8), nn.Linear(8, 4)):double()
  local path, optimizer = ("%s/%s"):format(arg[1], kind), make(net)
  local rest = mh.checkpoint.load(path, {net = net, optimizer = optimizer})
  assert(rest.step == 2 and rest.name == kind, "numbers and strings")
  local x = mh.distribute_tensor(rest.x, mesh, {mh.Shard(0)})
  mh.mse_loss(net(x), x):backward()
  optimizer:step()
  mh.checkpoint.save(path .. "_lua", {net = net, optimizer = optimizer, step = 3})
end
