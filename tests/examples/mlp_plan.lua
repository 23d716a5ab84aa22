-- SPDX-License-Identifier: Apache-2.0
-- V21: an MLP divided by a plan and trained; every rank runs this script. Returns the losses and the divided model.
local mh = require "moonhalo"
local nn, S, R = mh.nn, mh.Shard, mh.Replicate

local MLP = nn.Module:extend("MLP")
function MLP:init()
  self.fc1 = nn.Linear(8, 20)
  self.fc2 = nn.Linear(20, 8)
end
function MLP:forward(x) return self.fc2(self.fc1(x):gelu()) end

mh.manual_seed(1)
local net, x, y = MLP():double(), mh.randn({16, 8}, {dtype = "float64"}), mh.randn({16, 8}, {dtype = "float64"})
mh.parallelize_module(net, mh.init_device_mesh(mh.device(), {mh.world_size()}), {
  parameter = {["fc1.weight"] = {S(0)}, ["fc1.bias"] = {S(0)}, ["fc2.weight"] = {S(1)}, ["fc2.bias"] = {R()}},
  forward = {["fc1.input"] = {{R()}}, ["fc2.output"] = {{R()}}},
})
local opt, losses = mh.optim.AdamW(net:parameters(), {lr = 0.01}), {}
for step = 1, 3 do
  opt:zero_grad()
  local loss = mh.mse_loss(net(x), y)
  loss:backward()
  mh.finish_grad_sync(net)
  opt:step()
  losses[step] = loss:item()
end
if mh.rank() == 0 then print("losses", table.unpack(losses)) end
return losses, net
