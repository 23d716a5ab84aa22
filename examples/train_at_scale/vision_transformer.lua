-- SPDX-License-Identifier: Apache-2.0
-- A vision transformer from fields to fields: [batch, channels, height, width] of any size becomes tokens of patch x
-- patch points, every token attends to all others (Dosovitskiy et al., "An image is worth 16x16 words", 2021), and each
-- becomes points again. Nothing in here knows of ranks.
local mh = require "moonhalo"
local nn = mh.nn

local Block = nn.Module:extend("Block")
function Block:init(dim, heads)
  self.heads = heads
  self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
  self.query = nn.Linear(dim, dim)
  self.key = nn.Linear(dim, dim)
  self.value = nn.Linear(dim, dim)
  self.mix = nn.Linear(dim, dim)
  self.widen = nn.Linear(dim, 4 * dim)
  self.narrow = nn.Linear(4 * dim, dim)
end

--- [batch, tokens, dim] -> [batch, heads, tokens, dim / heads].
function Block:split(x) return x:unflatten(2, {self.heads, -1}):transpose(1, 2) end

function Block:forward(x)
  local y = self.norm1(x)
  local seen = mh.scaled_dot_product_attention(self:split(self.query(y)), self:split(self.key(y)),
      self:split(self.value(y)))
  x = x + self.mix(seen:transpose(1, 2):flatten(2))
  return x + self.narrow(mh.gelu(self.widen(self.norm2(x))))
end

local VisionTransformer = nn.Module:extend("VisionTransformer")

--- Options: channels, out_channels, size {height, width}, patch, dim, heads, depth. At first it predicts zero.
function VisionTransformer:init(options)
  local patch = options.patch
  self.patch = patch
  self.embed = nn.Conv2d(options.channels, options.dim, patch, {stride = patch})
  local tokens = -(-options.size[1] // patch) * -(-options.size[2] // patch)
  self.position = nn.Parameter(mh.randn{1, tokens, options.dim} * 0.02)
  self.blocks = nn.ModuleList{}
  for _ = 1, options.depth do self.blocks:append(Block(options.dim, options.heads)) end
  self.norm = nn.LayerNorm(options.dim)
  self.leave = nn.Linear(options.dim, patch * patch * options.out_channels)
  nn.init.zeros_(self.leave.weight)
  nn.init.zeros_(self.leave.bias)
end

function VisionTransformer:forward(x)
  local height, width = x.shape[3], x.shape[4]
  local patches = self.embed(mh.pad(x, {0, -width % self.patch, 0, -height % self.patch}, "replicate"))
  local rows, columns = patches.shape[3], patches.shape[4]
  local tokens = patches:flatten(2):transpose(1, 2) + self.position
  for _, block in self.blocks:each() do tokens = block(tokens) end
  local points = self.leave(self.norm(tokens)):transpose(1, 2):unflatten(2, {rows, columns})
  return mh.pixel_shuffle(points, self.patch):narrow(2, 0, height):narrow(3, 0, width)
end

return VisionTransformer
