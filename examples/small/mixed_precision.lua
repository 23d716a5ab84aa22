-- SPDX-License-Identifier: Apache-2.0
-- Products in float16, weights in float32, and gradients that are scaled so that small ones are not lost.
local mh = require "moonhalo"
local nn = mh.nn
local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"batch"})
mh.manual_seed(1)

local net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))
local opt, scaler = mh.optim.AdamW(net:parameters(), {lr = 1e-2}), mh.GradScaler()
local x = mh.distribute_tensor(mh.randn{24, 8}, mesh, {mh.Shard(0)})
local wanted, first, last = x:sum({1}, true), nil, nil
for _ = 1, 20 do
  local loss = mh.autocast("float16", function() return mh.mse_loss(net(x), wanted) end)
  opt:zero_grad()
  scaler:scale(loss):backward()
  scaler:step(opt)
  scaler:update()
  last = loss:item()
  first = first or last
end
print(last < first, net[0].weight.dtype)  --> true  float32
