-- SPDX-License-Identifier: Apache-2.0
-- A small vision transformer for support/model_runs.lua: 20 x 12 pixels, patches of 4 x 4 by a strided convolution, 15
-- tokens in one cut sequence, attention over all of them, mean pooling, classes.
local mh = require "moonhalo"
local nn = mh.nn

local kShape, kPatch, kWidth, kHeads, kClasses = {3, 2, 20, 12}, 4, 12, 3, 5
local kTokens = kShape[3] // kPatch * (kShape[4] // kPatch)

local Block = nn.Module:extend("VisionBlock")
function Block:init(causal)
  self.causal = causal
  self.norm = nn.LayerNorm(kWidth)
  self.qkv = nn.Linear(kWidth, 3 * kWidth)
  self.proj = nn.Linear(kWidth, kWidth)
  self.mlp = nn.Sequential(nn.LayerNorm(kWidth), nn.Linear(kWidth, 2 * kWidth), nn.GELU(),
      nn.Linear(2 * kWidth, kWidth))
end
function Block:forward(x)
  -- [batch, tokens, 3, heads, head_dim]
  local parts = self.qkv(self.norm(x)):unflatten(-1, {3, kHeads, kWidth // kHeads})
  local q, k, v = parts:select(2, 0):transpose(1, 2), parts:select(2, 1):transpose(1, 2),
      parts:select(2, 2):transpose(1, 2)
  local seen = mh.scaled_dot_product_attention(q, k, v, {is_causal = self.causal})
  x = x + self.proj(seen:transpose(1, 2):flatten(2))
  return x + self.mlp(x)
end

local Transformer = nn.Module:extend("VisionTransformer")
function Transformer:init(causal)
  self.patches = nn.Conv2d(kShape[2], kWidth, kPatch, {stride = kPatch})
  self.position = nn.Parameter(mh.randn{1, kTokens, kWidth} * 0.5)
  self.blocks = nn.Sequential(Block(causal), Block(causal))
  self.norm = nn.LayerNorm(kWidth)
  self.head = nn.Linear(kWidth, kClasses)
end
function Transformer:forward(x)
  local tokens = self.patches(x):flatten(2):transpose(1, 2) + self.position
  return self.head(self.norm(self.blocks(tokens)):mean(1))
end

local function model(causal)
  return {
    network = function() return Transformer(causal):double() end,
    sample = function() return {x = mh.randn(kShape, {dtype = "float64"}),
    labels = mh.tensor({3, 0, 4}, {dtype = "int64"})} end, predict = function(net, samples) return net(samples.x) end,
    loss = function(prediction, samples) return mh.cross_entropy(prediction, samples.labels) end,
  }
end

return {all = model(false), causal = model(true)}
