-- SPDX-License-Identifier: Apache-2.0
-- Models and samples of the tests of pipelines.
local mh = require "moonhalo"
local nn = mh.nn

local ranks = mh.world_size()
local kF64 = {dtype = "float64"}

local function mlp()
  return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.LayerNorm(8), nn.Dropout(0.4), nn.Linear(8, 5),
      nn.GELU(), nn.Linear(5, 3)):double()
end
local function seeded(make, ...)
  mh.manual_seed(5)
  return make(...)
end

--- Batches of different sizes, with targets.
local function samples(micros)
  mh.manual_seed(6)
  local list = {}
  for i = 1, micros do list[i] = {mh.randn({i % 3 + 1, 6}, kF64), target = mh.randn({i % 3 + 1, 3}, kF64)} end
  return list
end
local function loss_of(prediction, sample) return mh.mse_loss(prediction, sample.target) end

-- A module that says what its stages are: the first hands the field on to the last, whose head is the first one's
-- embedding.
local Down, Up = nn.Module:extend("Down"), nn.Module:extend("Up")
function Down:init(table)
  self.table = table
  self.mix = nn.Linear(4, 4)
end
function Down:forward(x, ...)
  local h = mh.embedding(self.table.weight, x)
  return self.mix(h):tanh(), h, ...
end
local Middle = nn.Module:extend("Middle")
function Middle:init() self.mix = nn.Linear(4, 4) end
function Middle:forward(h, ...) return self.mix(h):sin(), ... end
function Up:init(table) self.table = table end
function Up:forward(h, skip) return mh.linear(h + skip, self.table.weight) end

local Words = nn.Module:extend("Words")
function Words:init()
  self.table = nn.Embedding(7, 4)
  self.first = Down(self.table)
  self.middle = nn.ModuleList()
  for _ = 1, ranks - 2 do self.middle:append(Middle()) end
  self.last = Up(self.table)
end
function Words:stages()
  local list = self.middle:children()
  table.insert(list, 1, self.first)
  list[#list + 1] = self.last
  return list
end
function Words:forward(x)
  local values = {x}
  for _, stage in ipairs(self:stages()) do values = {stage(table.unpack(values))} end
  return values[1]
end

local function words() return Words():double() end
local function cross_entropy(logits, sample) return mh.cross_entropy_loss(logits, sample.target) end

return {mlp = mlp, seeded = seeded, samples = samples, loss_of = loss_of, words = words, cross_entropy = cross_entropy}
