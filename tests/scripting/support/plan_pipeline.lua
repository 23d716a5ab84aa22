-- SPDX-License-Identifier: Apache-2.0
-- X14: trains a pipeline whose stages and samples differ in size, for moonhalo plan --check.
local mh = require "moonhalo"
local nn = mh.nn

local ranks, kMicros, kWidth = mh.world_size(), 5, 256
local mesh = mh.init_device_mesh("cpu", {ranks}, {"pp"})
local stages, samples = {}, {}
for i = 1, ranks do
  stages[i] = nn.Sequential(nn.Linear(kWidth, kWidth * (1 + i)), nn.Tanh(), nn.Linear(kWidth * (1 + i), kWidth))
end
for i = 1, kMicros do samples[i] = mh.zeros{1000 + i, kWidth} end
local pipeline = mh.pipeline(nn.Sequential(table.unpack(stages)), {mesh = mesh, micros = kMicros})
local optimizer = mh.optim.AdamW(pipeline:parameters(), {lr = 1e-3})
for _ = 1, 1000 do
  optimizer:zero_grad()
  pipeline:train_step(samples, function(y) return y:square():mean() end)
  optimizer:step()
end
