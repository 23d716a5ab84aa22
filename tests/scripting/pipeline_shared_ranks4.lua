-- SPDX-License-Identifier: Apache-2.0
-- Stages that are fully sharded and share a weight whose rows do not come out even.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn, optim = mh.nn, mh.optim

local kWords, kWidth = 9, 4
local tests = {}

local First, Last = nn.Module:extend("First"), nn.Module:extend("Last")
function First:init(table) self.table, self.mix = table, nn.Linear(kWidth, kWidth) end
function First:forward(x)
  local h = mh.embedding(self.table.weight, x)
  return self.mix(h):tanh(), h
end
-- Its own parameters come first, and one rank has more of them.
function Last:init(table)
  self.odd, self.back = nn.Linear(kWidth, 7), nn.Linear(7, kWidth)
  self.table = table
end
function Last:forward(h, skip) return mh.linear(self.back(self.odd(h)) + skip, self.table.weight) end

local function new()
  mh.manual_seed(5)
  local table = nn.Embedding(kWords, kWidth)
  return nn.ModuleList{First(table), Last(table)}:double()
end

local function train(parameters, step, clip)
  local opt, found = optim.AdamW(parameters, {lr = 0.05}), {}
  for k = 1, 3 do
    local losses = step(k)
    found[k] = {losses[1], losses[2], clip(opt)}
    opt:step()
  end
  return found
end

--- Micro-batches of a step, six words in each; of them those from `first` to `last`.
local function samples(step, first, last)
  local list = {}
  for i = 1, 2 do
    local x = (mh.arange(6) * (step + 1) + i):remainder(kWords)
    list[i] = {x:narrow(0, first, last - first), target = (x + 2):remainder(kWords):narrow(0, first, last - first)}
  end
  return list
end

function tests.test_they_train_as_on_one_rank()
  local whole = new()
  local expected = train(whole:parameters(), function(step)
    whole:zero_grad()
    local losses = {}
    for i, sample in ipairs(samples(step, 0, 6)) do
      local loss = mh.cross_entropy_loss(whole[1](whole[0](sample[1])), sample.target)
      loss:backward()
      losses[i] = loss:detach()
    end
    return losses
  end, function() return mh.clip_grad_norm(whole:parameters(), 0.1) end)
  for _, shape in ipairs {{2, 2, 1}, {2, 1, 2}} do
    local mesh = mh.init_device_mesh(mh.device(), shape, {"pp", "dp", "others"})
    local name = shape[2] > 1 and "dp" or "others"
    local axis = mesh[name]
    local pipe = mh.pipeline(new():children(), {mesh = mesh, micros = 2, schedule = "gpipe",
        parallelize = function(stage, slice)
      mh.fully_shard(stage, {mesh = slice[name], min_numel = 1})
    end})

    local found = train(pipe:parameters(), function(step)
      return pipe:train_step(samples(step, 6 * axis.rank // 2, 6 * (axis.rank + 1) // 2), function(y, sample)
        return mh.cross_entropy_loss(y, mh.local_batch(sample.target, axis))
      end)
    end, function(opt) return opt:clip_gnorm(0.1) end)

    for step, numbers in ipairs(expected) do
      for i, number in ipairs(numbers) do testing.assert_close(found[step][i], number) end
    end
  end
end

return tests
