-- SPDX-License-Identifier: Apache-2.0
-- A script whose settings a sweep changes. Each point is a run of its own, and `moonhalo runs FOLDER` lists them:
--     moonhalo sweep examples/small/sweep.lua --grid lr=0.1,0.01 --grid width=4,16 --jobs 2
local mh = require "moonhalo"
local nn = mh.nn
local cfg = mh.config {lr = 0.03, width = 8, steps = 30, seed = 1}
local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"batch"})
mh.manual_seed(cfg.seed)

local net = nn.Sequential(nn.Linear(1, cfg.width), nn.Tanh(), nn.Linear(cfg.width, 1))
local opt = mh.optim.Adam(net:parameters(), {lr = cfg.lr})
local x = mh.distribute_tensor(mh.linspace(-2, 2, 40):unsqueeze(1), mesh, {mh.Shard(0)})
local first, loss
for step = 1, cfg.steps do
  loss = mh.mse_loss(net(x), x:sin())
  opt:zero_grad()
  loss:backward()
  opt:step()
  mh.log {step = step, loss = loss:item()}
  first = first or loss:item()
end
print(loss:item() < first)  --> true
