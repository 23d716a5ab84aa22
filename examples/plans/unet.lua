-- SPDX-License-Identifier: Apache-2.0
-- A U-Net in three dims for moonhalo plan: every rank has a block of `block`^3 points, and ranks are near a cube.
--   moonhalo plan examples/plans/unet.lua --ranks 8,64,512,4096 --machine h100
local mh = require "moonhalo"
local nn = mh.nn

local cfg = mh.config{block = 64, channels = 16, levels = 3}

--- The most even {depth, rows, columns} whose product is the number of ranks.
local function cube(ranks)
  local shape = {1, 1, 1}
  for factor = 2, ranks do
    while ranks % factor == 0 do
      table.sort(shape)
      shape[1], ranks = shape[1] * factor, ranks // factor
    end
  end
  table.sort(shape, function(a, b) return a > b end)
  return shape
end

local Block = nn.Module:extend("Block")
function Block:init(from, to)
  self.conv = nn.Conv3d(from, to, 3, {padding = 1})
  self.norm = nn.GroupNorm(4, to)
end
function Block:forward(x) return mh.silu(self.norm(self.conv(x))) end

local UNet = nn.Module:extend("UNet")
function UNet:init(channels, levels)
  self.enter = Block(4, channels)
  self.down, self.up, self.join = nn.ModuleList{}, nn.ModuleList{}, nn.ModuleList{}
  for level = 1, levels do
    local fine, coarse = channels << level - 1, channels << level
    self.down:append(Block(fine, coarse))
    self.up:append(nn.ConvTranspose3d(coarse, fine, 2, {stride = 2}))
    self.join:append(Block(2 * fine, fine))
  end
  self.leave = nn.Conv3d(channels, 4, 1)
end
function UNet:forward(x)
  local skipped, levels = {self.enter(x)}, #self.down
  for level = 1, levels do
    skipped[level + 1] = self.down[level - 1](nn.functional.max_pool3d(skipped[level], 2))
  end
  local y = skipped[levels + 1]
  for level = levels, 1, -1 do y = self.join[level - 1](mh.cat({self.up[level - 1](y), skipped[level]}, 1)) end
  return self.leave(y)
end

local mesh = mh.init_device_mesh(mh.device(), cube(mh.world_size()), {"depth", "rows", "columns"})
local net = UNet(cfg.channels, cfg.levels)
mh.distribute_module(net, mesh)
local optimizer = mh.optim.AdamW(net:parameters(), {lr = 1e-3})
local function field()
  local own = mh.zeros({1, 4, cfg.block, cfg.block, cfg.block}, {device = mesh.device})
  return mh.from_local(own, mesh, {mh.Shard(2), mh.Shard(3), mh.Shard(4)})
end
local now, later = field(), field()
for _ = 1, 3 do
  optimizer:zero_grad()
  local loss = (net(now) - later):square():mean()
  loss:backward()
  optimizer:step()
end
