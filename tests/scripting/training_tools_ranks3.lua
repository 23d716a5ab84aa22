-- SPDX-License-Identifier: Apache-2.0
-- Y16: mh.summary, net:num_parameters, mh.find_lr, mh.checkpoint_modules, on plain models and on blocks.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local kF64 = {dtype = "float64"}
local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
local nn = mh.nn
local tests = {}

local Net = nn.Module:extend("Net")
function Net:init()
  self.blocks = nn.ModuleList {nn.Conv2d(2, 4, 3, {padding = 1}), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3, {padding = 1})}
  self.act = nn.Tanh()
end
function Net:forward(x)
  x = self.act(self.blocks[0](x))
  return self.blocks[2](self.act(self.blocks[1](x)))
end

local function net()
  mh.manual_seed(3)
  return Net():double()
end

local function field()
  mh.manual_seed(4)
  return mh.randn({2, 2, 9, 6}, kF64)
end

function tests.test_Y16_summary()
  local model, x = net(), field()
  testing.assert_equal(model:num_parameters(), 2 * 4 * 9 + 4 + 8 + 4 * 2 * 9 + 2)
  local text = mh.summary(model, mh.distribute_tensor(x, mesh, {mh.Shard(2, {3, 0, 6})}))
  local lines = {}
  for line in text:gmatch("[^\n]+") do lines[#lines + 1] = line end
  testing.assert_equal(#lines, 8)
  local rows = ({[0] = 3, 0, 6})[mh.rank()]
  local function commas(count) return (tostring(count):gsub("(%d)(%d%d%d)$", "%1,%2")) end
  assert(lines[1]:find("^module +class +shape +cut +parameters +multiply%-adds +bytes$"), lines[1])
  assert(lines[2]:find("^%(net%) +Net +{2, 2, 9, 6} +Shard%(2, {3, 0, 6}%) +0 +[%d,]+ +" .. commas(rows * 24 * 8)
      .. "$"), lines[2])
  assert(lines[3]:find("^  blocks%.0 +Conv2d +{2, 4, 9, 6} +Shard%(2, {3, 0, 6}%) +76 +[%d,]+ +"
      .. commas(rows * 48 * 8) .. "$"), lines[3])
  -- A convolution has 2 * 4 * 9 multiply-adds for each of 2 * 9 * 6 places; the net has two.
  local plain = mh.summary(model, x)
  assert(plain:find("%(net%) +Net +{2, 2, 9, 6} +%- +0 +15,552 +1,728\n"), plain)
  assert(plain:find("\n  blocks%.0 +Conv2d +{2, 4, 9, 6} +%- +76 +7,776 "), plain)
  assert(lines[4]:find("^  act +Tanh"), lines[4])
  assert(lines[8]:find("^158 parameters %(158 trained%), 1,264 bytes, "), lines[8])
  assert(model.training and model.blocks[1].training, "the mode is as before")
  testing.assert_equal(model.blocks[1].num_batches_tracked:item(), 0)
  model.blocks[0]:requires_grad_(false)
  assert(mh.summary(model, x):find("158 parameters (82 trained)", 1, true))
  testing.assert_equal(model:num_parameters{trained = true}, 82)
  testing.assert_error(function() mh.summary(model, x:float()) end, "")
  testing.assert_close(model(x).shape[1] + 0.0, 2.0)
end

local function gradients(model, x)
  model:zero_grad()
  mh.manual_seed(8)
  local y = model(x)
  y:square():sum():backward()
  local found = {}
  for name, parameter in model:named_parameters() do found[name] = parameter.grad:full_tensor():clone() end
  return y:detach():full_tensor(), found, model.blocks[1].running_mean:clone():full_tensor()
end

function tests.test_Y16_checkpointed_modules_give_the_same_gradients()
  for _, place in ipairs {false, mh.Shard(2, {4, 5, 0}), mh.Shard(0)} do
    local x = place and mh.distribute_tensor(field(), mesh, {place}) or field()
    local y, expected, statistics = gradients(net(), x)
    for _, every in ipairs {1, 2} do
      local model = net()
      local handle = mh.checkpoint_modules(model, "blocks.*", {every = every})
      testing.assert_equal(handle.modules, every == 1 and {"blocks.0", "blocks.1", "blocks.2"}
          or {"blocks.0", "blocks.2"})
      local again, have, have_statistics = gradients(model, x)
      testing.assert_close(again, y)
      testing.assert_all_close(have, expected)
      testing.assert_close(have_statistics, statistics)
      handle.remove()
      assert(rawget(model.blocks[0], "forward") == nil, "remove() undoes it")
    end
  end
end

function tests.test_Y16_find_lr_puts_everything_back()
  for _, place in ipairs {false, mh.Shard(2, {4, 5, 0})} do
    local model = net()
    local x = place and mh.distribute_tensor(field(), mesh, {place}) or field()
    local opt = mh.optim.AdamW(model:parameters(), {lr = 3e-4})
    local function loss() return (model(x) - 1):square():mean() end
    local function step()
      opt:zero_grad()
      loss():backward()
      opt:step()
    end
    step()
    local before = {}
    for name, tensor in model:state_dict() do before[name] = tensor:detach():full_tensor():clone() end
    local found = mh.find_lr(model, opt, loss, {least = 1e-5, most = 10.0, steps = 40})
    local after = {}
    for name, tensor in model:state_dict() do after[name] = tensor:detach():full_tensor() end
    for name, tensor in pairs(before) do testing.assert_equal(after[name], tensor) end
    testing.assert_equal(opt.param_groups[1].lr, 3e-4)
    testing.assert_equal(opt:state_dict().state[1].step, 1)
    assert(#found.rates == #found.losses and #found.rates >= 3)
    assert(found.suggestion > 1e-5 and found.suggestion < 10.0, found.suggestion)
    testing.assert_close(found.rates[1], 1e-5)
    -- The loss of the first step has nothing before it.
    testing.assert_close(found.losses[1], loss():item(), {rtol = 1e-9})
    step()
  end
  local function diverging(step) return mh.full({}, 10.0 ^ step, kF64):requires_grad_(true) end
  local w = nn.Linear(1, 1)
  local opt = mh.optim.SGD(w:parameters(), {lr = 1.0})
  testing.assert_error(function() mh.find_lr(w, opt, diverging, {smooth = 0.0}) end,
      "have  1 of 60 steps, losses from 10 at rate 1e-07 to 10 at 1e-07")
end

function tests.test_Y16_find_lr_finds_no_rate_where_the_loss_never_falls()
  local w, kSteps = nn.Linear(1, 1):double(), 5
  local opt = mh.optim.SGD(w:parameters(), {lr = 0.25})
  local weight = w.weight:detach():clone()
  local losses = {
    grows = function(step) return (w.weight * 0):sum() + 1.0 + 0.125 * step end,
    stays = function() return (w.weight * 0):sum() + 1.0 end,
    is_no_number = function() return (w.weight * 0):sum() + 0 / 0 end,
  }
  for _, loss in pairs(losses) do
    testing.assert_error(function() mh.find_lr(w, opt, loss, {steps = kSteps, smooth = 0.0}) end,
        "find_lr: the loss falls at none of the rates")
    testing.assert_equal(w.weight:detach(), weight)
    testing.assert_equal(opt.param_groups[1].lr, 0.25)
  end
  -- The smoothed mean of equal losses is rounded: it falls by 1e-17 or so.
  for _, value in ipairs {1.1, 0.3, -2.7, 1e-9, 1e9} do
    local function same() return (w.weight * 0):sum() + value end
    testing.assert_error(function() mh.find_lr(w, opt, same) end, "find_lr: the loss falls at none of the rates")
  end
  -- A loss that falls once has a rate: that of the fall.
  local values = {4.0, 5.0, 3.0, 3.5, 6.0}
  local function falls(step) return (w.weight * 0):sum() + values[step] end
  local found = mh.find_lr(w, opt, falls, {steps = kSteps, smooth = 0.0})
  testing.assert_equal(found.suggestion, found.rates[3])
  -- A small fall of a large loss counts.
  local function falls_little(step) return (w.weight * 0):sum() + (step < 3 and 1.0 or 1.0 - 1e-11) end
  testing.assert_equal(mh.find_lr(w, opt, falls_little, {steps = kSteps, smooth = 0.0}).suggestion, found.rates[3])
end

function tests.test_Y16_mistakes()
  local model = net()
  local opt = mh.optim.SGD(model:parameters(), {lr = 0.1})
  local cases = {
    {function() mh.summary(3) end, "summary: expected an nn.Module, got 3"},
    {function() mh.find_lr(model, 3, print) end, "find_lr: opt is 3, expected an optimizer"},
    {function() mh.find_lr(model, opt, print, {least = 1.0, most = 0.5}) end, "expected 0 < least < most"},
    {function() mh.find_lr(model, opt, function() return 3 end) end, "find_lr: loss gives 3, expected a tensor"},
    {function() mh.checkpoint_modules(model, "block.*") end, "checkpoint_modules: 'block.*' matches no module"},
    {function() model:num_parameters{traind = true} end, "num_parameters: unknown option 'traind'"},
  }
  for _, case in ipairs(cases) do testing.assert_error(case[1], case[2]) end
end

return tests
