-- SPDX-License-Identifier: Apache-2.0
-- Averages of parameters (mh.EMA) against the recurrence, on blocks too; saved on a cut and loaded on another.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local own_path = require "support.own_path"
local nn, optim = mh.nn, mh.optim

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"tp"})
local kF64 = {dtype = "float64"}
local S = mh.Shard
local tests = {}

local function plain(x) return x:is_shard_tensor() and x:full_tensor() or x end

local Net = nn.Module:extend("Net")
function Net:init()
  self.fc1 = nn.Linear(5, 7)
  self.norm = nn.BatchNorm1d(7)
  self.fc2 = nn.Linear(7, 3)
end
function Net:forward(x) return self.fc2(self.norm(self.fc1(x)):gelu()) end

local function net()
  mh.manual_seed(5)
  return Net():double()
end
local function divided()
  return mh.parallelize_module(net(), mesh, {parameter = {["fc1.weight"] = {S(0)}, ["fc1.bias"] = {S(0)},
      ["fc2.weight"] = {S(1)}}})
end

local function values(module)
  local found = {}
  for _, tensors in ipairs{module:named_parameters(), module:named_buffers()} do
    for name, tensor in tensors do found[name] = plain(tensor:detach()):clone() end
  end
  return found
end

--- `after(step)` runs after each of `steps` steps.
local function train(model, steps, after)
  mh.manual_seed(9)
  local opt = optim.SGD(model:parameters(), {lr = 0.1})
  for step = 1, steps do
    opt:zero_grad()
    model(mh.randn({8, 5}, kF64)):square():sum():backward()
    opt:step()
    after(step)
  end
end

--- The averages of a plain model by the recurrence.
local function expected_averages(decay_at)
  local model, seen = net(), nil
  seen = values(model)
  train(model, 6, function(step)
    for name, value in pairs(values(model)) do
      local averaged = name:find("running", 1, true) == nil and name:find("num_batches", 1, true) == nil
      seen[name] = averaged and seen[name] * decay_at(step) + value * (1 - decay_at(step)) or value
    end
  end)
  return seen
end

local function averages(ema)
  local found = {}
  for name, average in pairs(ema:state_dict().averages) do found[name] = plain(average):clone() end
  return found
end

for _, case in ipairs {
  {"constant_decay", {decay = 0.9}, function() return 0.9 end},
  {"warmup", {decay = 0.3, warmup = true}, function(step) return math.min(0.3, step / (9 + step)) end},
} do
  tests["test_" .. case[1]] = function()
    local expected = expected_averages(case[3])
    for _, make in ipairs{net, divided} do
      local model = make()
      local ema = mh.EMA(model, case[2])
      train(model, 6, function() ema:update() end)

      testing.assert_all_close(averages(ema), expected)
      testing.assert_equal(ema.updates, 6)
    end
  end
end

function tests.test_averages_lie_as_their_parameters_do()
  local model = divided()
  local ema = mh.EMA(model)
  ema:update()

  for name, average in pairs(ema:state_dict().averages) do
    local has, tensor = pcall(model.get_parameter, model, name)
    if not has then tensor = model:get_buffer(name) end
    testing.assert_equal(average.placements, tensor.placements)
    testing.assert_equal(average.requires_grad, false)
  end
end

function tests.test_swap_and_apply_to()
  local model, other = divided(), divided()
  local ema = mh.EMA(model, {decay = 0.5})
  train(model, 3, function() ema:update() end)
  local trained, smooth = values(model), averages(ema)

  ema:swap()
  testing.assert_all_close(values(model), smooth, {rtol = 0, atol = 0})
  testing.assert_error(function() ema:update() end,
      "EMA: update: the averages are in the module\n  fix   call swap() again first")
  ema:swap()
  ema:apply_to(other)

  testing.assert_all_close(values(model), trained, {rtol = 0, atol = 0})
  testing.assert_all_close(values(other), smooth, {rtol = 0, atol = 0})
  testing.assert_all_close(averages(ema), smooth, {rtol = 0, atol = 0})
  ema:update()
end

function tests.test_a_checkpoint_is_loaded_on_another_cut()
  local path = own_path("ema")
  local model = divided()
  local ema = mh.EMA(model, {decay = 0.5})
  train(model, 3, function() ema:update() end)
  mh.checkpoint.save(path, {model = model, ema = ema})

  local again = net()
  local ema2 = mh.EMA(again, {decay = 0.5})
  mh.checkpoint.load(path, {model = again, ema = ema2})

  testing.assert_equal(ema2.updates, 3)
  testing.assert_all_close(averages(ema2), averages(ema))
  for _, one in ipairs{ema, ema2} do one:update() end
  testing.assert_all_close(averages(ema2), averages(ema))
  local state = ema:state_dict()
  state.averages["fc1.wait"], state.averages["fc1.weight"] = state.averages["fc1.weight"], nil
  testing.assert_error(function() ema2:load_state_dict(state) end, "EMA: load_state_dict: missing keys: 'fc1.weight'")
  testing.assert_error(function() ema2:load_state_dict{updates = 2} end,
      "EMA: load_state_dict: expected the table of state_dict()")
end

-- 1 - decay is below the spacing of bfloat16 here.
function tests.test_parameters_of_two_bytes_are_averaged_in_four()
  local model = nn.Linear(3, 2):bfloat16()
  mh.no_grad(function() model.weight:fill_(1) end)
  local ema = mh.EMA(model, {decay = 0.999})
  mh.no_grad(function() model.weight:fill_(2) end)

  for _ = 1, 3 do ema:update() end

  local average = ema:state_dict().averages.weight
  testing.assert_close(average, mh.full({2, 3}, 2 - 0.999 ^ 3, {dtype = "float32"}))
  ema:swap()
  testing.assert_equal(model.weight.dtype, "bfloat16")
  ema:swap()
  testing.assert_equal(model.weight:detach(), mh.full({2, 3}, 2, {dtype = "bfloat16"}))
end

function tests.test_what_does_not_fit()
  local model = net()
  local ema = mh.EMA(model)
  mh.parallelize_module(model, mesh, {parameter = {["fc1.weight"] = {S(0)}}})
  testing.assert_error(function() ema:update() end,
      "EMA: update: 'fc1.weight' was placed since\n  have  an average on a plain tensor")
  testing.assert_error(function() mh.EMA(3) end, "EMA: expected an nn.Module, got 3")
  testing.assert_error(function() mh.EMA(net(), {decay = 2}) end, "EMA: decay is 2, expected a number within 0 and 1")
  testing.assert_error(function() mh.EMA(net(), {warmup = "no"}) end, "EMA: warmup is 'no', expected true or false")
  testing.assert_error(function() mh.EMA(net(), {decoy = 0.1}) end,
      "EMA: unknown option 'decoy'; did you mean 'decay'?")
  testing.assert_error(function() ema:apply_to(nn.Linear(2, 2)) end, "EMA: apply_to: the module has no 'fc1.weight'")
end

return tests
