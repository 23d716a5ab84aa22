-- SPDX-License-Identifier: Apache-2.0
-- A diffusion transformer whose attention looks at neighbourhoods, so that it can be cut along latitude and longitude:
-- fields [batch, channels, height, width] of any size become tokens of patch x patch points, every block is told the
-- noise level by shifts, scales and gates (adaLN; Peebles and Xie, "Scalable diffusion models with transformers",
-- 2023), and tokens attend to a window of others (Hassani et al., "Neighborhood attention transformer", 2023).
local mh = require "moonhalo"
local nn = mh.nn

--- cos and sin of `levels` [batch] at `width` / 2 frequencies from 1 down to 1 / 10000: [batch, width].
local function sinusoids(levels, width)
  local half = width // 2
  local frequencies = (mh.arange(half, {dtype = levels.dtype}) * (-math.log(1e4) / half)):exp()
  local angles = levels:unsqueeze(1) * frequencies
  return mh.cat({angles:cos(), angles:sin()}, 1)
end

--- A shift and a scale [batch, dim] for tokens [batch, rows, columns, dim].
local function modulate(x, shift, scale)
  return x * (scale + 1):unsqueeze(1):unsqueeze(1) + shift:unsqueeze(1):unsqueeze(1)
end
local function gated(gate, x) return gate:unsqueeze(1):unsqueeze(1) * x end

local Block = nn.Module:extend("Block")
function Block:init(dim, heads, window)
  local unlearned = {elementwise_affine = false, eps = 1e-6}
  self.norm1 = nn.LayerNorm(dim, unlearned)
  self.norm2 = nn.LayerNorm(dim, unlearned)
  self.attention = nn.NeighborhoodAttention2d(dim, heads, window)
  self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU{approximate = "tanh"}, nn.Linear(4 * dim, dim))
  self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))
end
function Block:forward(x, condition)
  local shift1, scale1, gate1, shift2, scale2, gate2 = table.unpack(self.modulation(condition):chunk(6, 1))
  x = x + gated(gate1, self.attention(modulate(self.norm1(x), shift1, scale1)))
  return x + gated(gate2, self.mlp(modulate(self.norm2(x), shift2, scale2)))
end

local DiffusionTransformer = nn.Module:extend("DiffusionTransformer")

--- Options: channels of the input, out_channels, size {height, width}, patch, dim, heads, depth, window. All gates
--- start at zero, as does the last layer: at first nothing is predicted.
function DiffusionTransformer:init(options)
  local dim, patch = options.dim, options.patch
  self.dim, self.patch, self.size = dim, patch, options.size
  self.embed = nn.Conv2d(options.channels, dim, patch, {stride = patch})
  local rows, columns = -(-options.size[1] // patch), -(-options.size[2] // patch)
  self.position = nn.Parameter(mh.randn{1, rows, columns, dim} * 0.02)
  self.level = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))
  self.blocks = nn.ModuleList{}
  for _ = 1, options.depth do self.blocks:append(Block(dim, options.heads, options.window)) end
  self.norm = nn.LayerNorm(dim, {elementwise_affine = false, eps = 1e-6})
  self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(dim, 2 * dim))
  self.leave = nn.Linear(dim, patch * patch * options.out_channels)
  for _, block in self.blocks:each() do self.zero(block.modulation[1]) end
  self.zero(self.modulation[1])
  self.zero(self.leave)
end

function DiffusionTransformer.zero(layer)
  nn.init.zeros_(layer.weight)
  nn.init.zeros_(layer.bias)
end

--- x: [batch, channels, height, width]; levels: the noise level of each, [batch].
function DiffusionTransformer:forward(x, levels)
  local height, width = x.shape[3], x.shape[4]
  local below, right = -height % self.patch, -width % self.patch
  local tokens = self.embed(mh.pad(x, {0, right, 0, below}, "replicate")):permute{0, 2, 3, 1} + self.position
  local condition = self.level(sinusoids(levels, self.dim))
  for _, block in self.blocks:each() do tokens = block(tokens, condition) end
  local shift, scale = table.unpack(self.modulation(condition):chunk(2, 1))
  local points = self.leave(modulate(self.norm(tokens), shift, scale)):permute{0, 3, 1, 2}
  return mh.pixel_shuffle(points, self.patch):narrow(2, 0, height):narrow(3, 0, width)
end

return DiffusionTransformer
