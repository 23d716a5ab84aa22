-- SPDX-License-Identifier: Apache-2.0
-- A network that solves u'' = -u with u(0) = 0, u'(0) = 1 from the equation alone. The points are cut over the ranks.
local mh = require "moonhalo"
local nn = mh.nn
local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"points"})
mh.manual_seed(1)

local net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
local opt = mh.optim.Adam(net:parameters(), {lr = 1e-2})
local t = mh.distribute_tensor(mh.linspace(0, 3, 31):unsqueeze(1), mesh, {mh.Shard(0)}):requires_grad_()
local function u(s) return s + s * s * net(s) end  -- the values at 0 hold for any weights

local first, loss
for _ = 1, 200 do
  local slope = mh.grad(u(t):sum(), t, {create_graph = true})
  loss = (mh.grad(slope:sum(), t, {create_graph = true}) + u(t)):square():mean()
  opt:zero_grad()
  loss:backward()
  opt:step()
  first = first or loss:item()
end
print(loss:item() < 0.1 * first, (u(t) - t:sin()):abs():max():item() < 0.3)  --> true  true
