-- SPDX-License-Identifier: Apache-2.0
-- A transformer over patches of a field for moonhalo plan. Each rank has samples of its own, and a block of every
-- parameter, gradient and state of the optimizer (fully_shard).
--   moonhalo plan examples/plans/transformer.lua --ranks 8,64,512,4096 --machine h100
local mh = require "moonhalo"
local nn = mh.nn

local cfg = mh.config{size = 16384, patch = 256, channels = 4, width = 1024, heads = 16, depth = 12}

local Block = nn.Module:extend("Block")
function Block:init()
  self.norm = nn.LayerNorm(cfg.width)
  for _, name in ipairs {"q", "k", "v", "proj"} do self[name] = nn.Linear(cfg.width, cfg.width) end
  self.mlp = nn.Sequential(nn.LayerNorm(cfg.width), nn.Linear(cfg.width, 4 * cfg.width), nn.GELU(),
    nn.Linear(4 * cfg.width, cfg.width))
end
function Block:forward(x)
  local normed = self.norm(x)
  local function heads(part) return part(normed):unflatten(-1, {cfg.heads, -1}):transpose(1, 2) end
  local seen = mh.scaled_dot_product_attention(heads(self.q), heads(self.k), heads(self.v))
  x = x + self.proj(seen:transpose(1, 2):flatten(2))
  return x + self.mlp(x)
end

local Transformer = nn.Module:extend("Transformer")
function Transformer:init()
  self.patches = nn.Conv2d(cfg.channels, cfg.width, cfg.patch, {stride = cfg.patch})
  self.blocks = nn.ModuleList{}
  for _ = 1, cfg.depth do self.blocks:append(Block()) end
  self.norm = nn.LayerNorm(cfg.width)
  self.head = nn.Linear(cfg.width, cfg.channels)
end
function Transformer:forward(x)
  local tokens = self.patches(x):flatten(2):transpose(1, 2)
  for _, block in self.blocks:each() do tokens = block(tokens) end
  return self.head(self.norm(tokens))
end

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"data"})
local net = Transformer()
for _, block in net.blocks:each() do mh.fully_shard(block, {mesh = mesh}) end
mh.fully_shard(net, {mesh = mesh})
local optimizer = mh.optim.AdamW(net:parameters(), {lr = 1e-3})
local x = mh.local_batch(mh.zeros({1, cfg.channels, cfg.size, cfg.size}, {device = mesh.device}))
for _ = 1, 3 do
  optimizer:zero_grad()
  local loss = net(x):square():mean()
  loss:backward()
  optimizer:step()
end
