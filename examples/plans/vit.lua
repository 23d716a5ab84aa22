-- SPDX-License-Identifier: Apache-2.0
-- A vision transformer for moonhalo plan: layers are divided by 8 ranks (tensor), tokens by up to 8 ranks (domain),
-- samples by the others (data).
--   moonhalo plan examples/plans/vit.lua --ranks 8,64,512,4096 --machine h100
local mh = require "moonhalo"
local nn = mh.nn

local cfg = mh.config{size = 512, patch = 8, width = 512, heads = 8, depth = 4}

local ranks = mh.world_size()
local tensor = math.min(8, ranks)
local domain = math.min(8, ranks // tensor)
local data = ranks // (tensor * domain)
local mesh = mh.init_device_mesh(mh.device(), {data, domain, tensor}, {"data", "domain", "tensor"})

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

local Vit = nn.Module:extend("Vit")
function Vit:init()
  self.patches = nn.Conv2d(4, cfg.width, cfg.patch, {stride = cfg.patch})
  self.blocks = nn.ModuleList{}
  for _ = 1, cfg.depth do self.blocks:append(Block()) end
  self.norm = nn.LayerNorm(cfg.width)
  self.head = nn.Linear(cfg.width, 4)
end
function Vit:forward(x)
  local tokens = self.patches(x):flatten(2):transpose(1, 2)
  for _, block in self.blocks:each() do tokens = block(tokens) end
  return self.head(self.norm(tokens))
end

local net = Vit()
local R, S = mh.Replicate, mh.Shard
local cut = {}  -- over data, domain and tensor
for _, name in ipairs {"q", "k", "v", "mlp.1"} do
  cut["blocks.*." .. name .. ".weight"], cut["blocks.*." .. name .. ".bias"] = {R(), R(), S(0)}, {R(), R(), S(0)}
end
for _, name in ipairs {"proj", "mlp.3"} do cut["blocks.*." .. name .. ".weight"] = {R(), R(), S(1)} end
mh.parallelize_module(net, mesh, {parameter = cut})
local optimizer = mh.optim.AdamW(net:parameters(), {lr = 1e-3})
local own = mh.zeros({1, 4, cfg.size // domain, cfg.size}, {device = mesh.device})
local x = mh.from_local(own, mesh, {S(0), S(2), R()})
for _ = 1, 3 do
  optimizer:zero_grad()
  local loss = net(x):square():mean()
  loss:backward()
  optimizer:step()
end
