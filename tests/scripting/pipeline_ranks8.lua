-- SPDX-License-Identifier: Apache-2.0
-- N05: pipeline, data and tensor or domain parallelism together, 2 x 2 x 2 ranks.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local own_path = require "support.own_path"
local nn, optim = mh.nn, mh.optim

local kF64 = {dtype = "float64"}
local S, R = mh.Shard, mh.Replicate
local tests = {}

local function seeded(make, ...)
  mh.manual_seed(5)
  return make(...)
end
local function plain(x) return x:is_shard_tensor() and x:full_tensor() or x end
local function loss_of(prediction, sample) return mh.mse_loss(prediction, sample.target) end

local function mlp()
  return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 5), nn.Linear(5, 8), nn.Tanh(),
      nn.Linear(8, 3)):double()
end
local function convnet()
  return nn.Sequential(nn.Conv2d(2, 4, 3, {padding = 1}), nn.GELU(), nn.GroupNorm(2, 4),
    nn.Conv2d(4, 4, 3, {padding = 1, stride = 2}), nn.Tanh(), nn.Conv2d(4, 3, 3, {padding = 1})):double()
end

--- Three steps of AdamW over micro-batches; the losses and the parameters after them.
local function train_whole(model, batches)
  local opt, losses = optim.AdamW(model:parameters(), {lr = 0.05}), {}
  for step = 1, 3 do
    opt:zero_grad()
    for _, sample in ipairs(batches) do
      local loss = loss_of(model(sample[1]), sample)
      loss:backward()
      losses[#losses + 1] = loss:detach()
    end
    opt:step()
  end
  return losses, model:state_dict()
end

local kCases = {
  tensor = {make = mlp, x = {5, 6}, y = {5, 3}, names = {"pp", "dp", "tp"}, field = {S(0, {3, 2}), R()},
    plan = {parameter = {["0.weight"] = {R(), S(0)}, ["0.bias"] = {R(), S(0)}, ["2.weight"] = {R(), S(1)}}},
  split = {3, 3}},
  domain = {make = convnet, x = {3, 2, 7, 5}, y = {3, 3, 4, 3}, names = {"pp", "dp", "domain"},
    field = {S(0, {1, 2}), S(2)}, plan = {}, split = {2, 1, 2, 1}, schedule = "interleaved_1f1b"},
  pipeline_inside = {make = mlp, x = {5, 6}, y = {5, 3}, names = {"dp", "pp", "tp"}, field = {S(0, {5, 0}), S(1)},
plan = {}, split = {3, 3}}, }

--- N41, X12: what stages have in blocks goes on after a checkpoint, and fits the whole model.
local function goes_on(case, mesh, pipe, opt, cut)
  local path = own_path(table.concat(case.names, "_"))
  mh.checkpoint.save(path, {model = pipe, opt = opt})
  local expected = pipe:train_step(cut, loss_of)
  opt:step()
  local after = pipe:train_step(cut, loss_of)

  local again = mh.pipeline(case.make(), {
    mesh = mesh, micros = 3, split = case.split, schedule = case.schedule,
    parallelize = function(stage, slice) mh.parallelize_module(stage, slice, case.plan) end,
  })
  local second = optim.AdamW(again:parameters(), {lr = 0.01})
  mh.checkpoint.load(path, {model = again, opt = second})
  for i, loss in ipairs(again:train_step(cut, loss_of)) do testing.assert_close(loss, expected[i]) end
  second:step()
  for i, loss in ipairs(again:train_step(cut, loss_of)) do testing.assert_close(loss, after[i]) end
  local whole = case.make()
  mh.checkpoint.load(path, {model = whole, opt = optim.AdamW(whole:parameters(), {lr = 0.01})})
end

for name, case in pairs(kCases) do
  tests["test_N05_three_steps_" .. name] = function()
    local mesh = mh.init_device_mesh(mh.device(), {2, 2, 2}, case.names)
    mh.manual_seed(6)
    local batches, cut = {}, {}
    for i = 1, 3 do batches[i] = {mh.randn(case.x, kF64), target = mh.randn(case.y, kF64)} end
    local expected_losses, expected = train_whole(seeded(case.make), batches)
    local pipe = mh.pipeline(seeded(mh.deferred_init, case.make, {min_numel = 0}), {
      mesh = mesh, micros = 3, split = case.split, schedule = case.schedule,
      parallelize = function(stage, slice) mh.parallelize_module(stage, slice, case.plan) end,
    })
    for i, sample in ipairs(batches) do
      cut[i] = {mh.distribute_tensor(sample[1], pipe.mesh, case.field),
          target = mh.distribute_tensor(sample.target, pipe.mesh, {case.field[1], R()})}
    end
    local opt, losses = optim.AdamW(pipe:parameters(), {lr = 0.05}), {}

    for step = 1, 3 do
      for _, loss in ipairs(pipe:train_step(cut, loss_of)) do losses[#losses + 1] = loss end
      opt:step()
    end

    for i, loss in ipairs(losses) do testing.assert_close(loss, expected_losses[i]) end
    for path, parameter in pipe:named_parameters() do
      testing.assert_close(plain(parameter):detach(), expected[path])
    end
    testing.assert_equal(pipe:parameters()[1].is_leaf, true)
    goes_on(case, mesh, pipe, opt, cut)
  end
end

return tests
