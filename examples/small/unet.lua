-- SPDX-License-Identifier: Apache-2.0
-- A U-Net on a field that is cut along both dims of a mesh. Its losses do not depend on the mesh.
local mh = require "moonhalo"
local nn = mh.nn
local ranks = mh.world_size()
local columns = ranks % 2 == 0 and 2 or 1
local mesh = mh.init_device_mesh(mh.device(), {ranks // columns, columns}, {"lat", "lon"})
mh.manual_seed(1)

local function block(from, to, stride)
  return nn.Sequential(nn.Conv2d(from, to, 3, {padding = 1, stride = stride}), nn.GroupNorm(2, to), nn.GELU())
end
local UNet = nn.Module:extend("UNet")
function UNet:init(width)
  self.enter, self.down = block(1, width, 1), block(width, 2 * width, 2)
  self.up = nn.ConvTranspose2d(2 * width, width, 2, {stride = 2})
  self.leave = nn.Conv2d(2 * width, 1, 1)
end
function UNet:forward(x)
  local fine = self.enter(x)
  return self.leave(mh.cat({fine, self.up(self.down(fine))}, {dim = 1}))
end

local net = UNet(4)
local opt = mh.optim.AdamW(net:parameters(), {lr = 1e-2})
local x = mh.distribute_tensor(mh.randn{2, 1, 18, 12}, mesh, {mh.Shard(2), mh.Shard(3)})
local loss
for _ = 1, 5 do
  loss = mh.mse_loss(net(x), x:roll(1, 2))
  opt:zero_grad()
  loss:backward()
  opt:step()
end
print(("%.3f"):format(loss:item()))  --> 0.780
