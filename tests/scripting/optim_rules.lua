-- SPDX-License-Identifier: Apache-2.0
-- Y16: optimizers and schedules written in Lua, against the numbers of PyTorch's (golden/optimizers.py).
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local golden = require "golden.optimizers"
local own_path = require "support.own_path"
local runs = require "support.own_optimizers"

local optim = mh.optim
local kF64 = {dtype = "float64"}
local tests = {}

for i, case in ipairs(golden.optimizers) do
  local name, options, expected = table.unpack(case)

  tests[("test_Y16_%s_%d_equals_pytorch"):format(name, i)] = function()
    local w, b = runs.problem()
    runs.train(runs.make(name, options, w, b), w, b, 6)
    local tolerance = name == "Muon" and 1e-6 or 1e-12
    testing.assert_close(mh.cat({w:detach():flatten(), b:detach()}, 0), mh.tensor(expected, kF64),
        {rtol = tolerance, atol = tolerance})
  end

  -- Saved after 3 steps, in a table and in a checkpoint, the run goes on bit by bit.
  tests[("test_Y16_%s_%d_resumes"):format(name, i)] = function()
    local w, b = runs.problem()
    local opt = runs.make(name, options, w, b)
    runs.train(opt, w, b, 3)
    local state, path = opt:state_dict(), own_path("optimizer_" .. i)
    mh.checkpoint.save(path, {optimizer = opt})
    local others = {}
    for j = 1, 2 do
      local w2, b2 = runs.problem()
      local again = runs.make(name, options, w2, b2)
      mh.no_grad(function() w2:copy_(w) b2:copy_(b) end)
      if j == 1 then again:load_state_dict(state) else mh.checkpoint.load(path, {optimizer = again}) end
      others[j] = {again, w2, b2}
    end
    runs.train(opt, w, b, 3)
    for _, other in ipairs(others) do
      runs.train(other[1], other[2], other[3], 3)
      testing.assert_equal(other[2]:detach(), w:detach())
      testing.assert_equal(other[3]:detach(), b:detach())
    end
  end
end

for i, case in ipairs(golden.schedules) do
  tests[("test_Y16_schedule_%d_equals_pytorch"):format(i)] = function()
    local function run(steps, state)
      local p = mh.zeros({1}, {requires_grad = true})
      local o = optim.SGD({p}, {lr = 0.5, momentum = 0.9})
      local schedule = case[1](o, optim)
      if state then schedule:load_state_dict(state) end
      local rates, momenta = {}, {}
      for step = 1, steps do
        rates[step], momenta[step] = o.param_groups[1].lr, o.param_groups[1].momentum
        schedule:step()
      end
      return rates, momenta, schedule
    end
    local rates, momenta = run(14)
    testing.assert_close(rates, mh.tensor(case[2], kF64), {rtol = 1e-12, atol = 1e-14})
    testing.assert_close(momenta, mh.tensor(case[3], kF64), {rtol = 1e-12, atol = 1e-14})
    local _, _, half = run(7)
    local later = run(7, half:state_dict())
    testing.assert_close(later, mh.tensor({table.unpack(case[2], 8)}, kF64), {rtol = 1e-12, atol = 1e-14})
  end
end

function tests.test_Y16_complex_parameters_are_pairs_of_reals()
  for _, name in ipairs {"NAdam", "RAdam", "Adamax", "Adadelta", "Rprop", "ASGD", "Lion"} do
    mh.manual_seed(4)
    local values = mh.randn({5}, {dtype = "complex128"})
    local z = values:clone():requires_grad_(true)
    local r = mh.view_as_real(values):clone():requires_grad_(true)
    local of_z, of_r = optim[name]({z}, {lr = 0.1}), optim[name]({r}, {lr = 0.1})
    for _ = 1, 4 do
      for _, one in ipairs {{of_z, mh.view_as_real(z)}, {of_r, r}} do
        one[1]:zero_grad()
        local loss = (one[2] ^ 4):sum()
        loss:backward()
        one[1]:step()
      end
    end
    testing.assert_close(mh.view_as_real(z:detach()), r:detach())
    assert(of_z:state_dict().state[1].exp_avg == nil or of_z:state_dict().state[1].exp_avg.dtype == "complex128")
  end
end

function tests.test_Y16_groups_closures_and_frozen_parameters()
  local w, b = runs.problem()
  local frozen = mh.ones({2}, kF64)
  local opt = optim.Lion({{params = {w}}, {params = {b, frozen}, lr = 0.5}}, {lr = 0.1})
  testing.assert_equal({opt.name, #opt.param_groups, opt.param_groups[1].lr, opt.param_groups[2].lr},
      {"Lion", 2, 0.1, 0.5})
  opt.param_groups[2].betas = {0.1, 0.2}
  testing.assert_equal({opt.param_groups[1].betas, opt.param_groups[2].betas}, {{0.9, 0.99}, {0.1, 0.2}})
  local loss = opt:step(function()
    opt:zero_grad()
    local value = runs.loss(w, b)
    value:backward()
    return value
  end)
  assert(loss:item() > 0)
  testing.assert_equal(frozen:tolist(), {1, 1})
  opt:add_param_group{params = {mh.ones({1}, kF64):requires_grad_(true)}, lr = 0.75}
  testing.assert_equal(opt.param_groups[3].lr, 0.75)
  optim.StepLR(opt, 1):step()
  testing.assert_close(opt.param_groups[2].lr, 0.05)
end

function tests.test_Y16_mistakes()
  local w, b = runs.problem()
  local cases = {
    {function() optim.NAdam({w}, {learning_rate = 1}) end, "NAdam: unknown option 'learning_rate'"},
    {function() optim.NAdam({w}, {lr = -1}) end, "NAdam: option 'lr' is -1, it must not be negative"},
    {function() optim.NAdam({w}, {betas = {0.9, 1.0}}) end, "option 'betas' holds 1.0, expected 0 <= beta < 1"},
    {function() optim.RAdam({}) end, "RAdam: the list of parameters is empty"},
    {function() optim.RAdam() end, "RAdam: expected a list of parameters"},
    {function() optim.Lion({w, w}) end, "Lion: a parameter is given twice"},
    {function() optim.Lion({w * 2}) end, "is the result of an operation"},
    {function() optim.Lion({{lr = 1}}) end, "a parameter group has no 'params'"},
    {function() optim.Muon({w, b}) end, "Muon: parameter 2 has shape [3], it trains matrices only"},
    {function() optim.Muon({w}, {adjust_lr_fn = "orginal"}) end, "did you mean 'original'?"},
    {function() optim.Adafactor({mh.ones({2}, {dtype = "complex64"}):requires_grad_(true)}) end, "is complex"},
    {function() optim.Lion({w}).param_groups[1].lrr = 1 end, "Lion has no option 'lrr'; did you mean 'lr'?"},
    {function() optim.Lion({w}):load_state_dict(optim.NAdam({w}):state_dict()) end,
      "the state is that of 'NAdam', the optimizer is Lion"},
    {function() optim.Lion({w}):load_state_dict(optim.Lion({w, b}):state_dict()) end,
      "'state' is of 2 parameters, the optimizer has 1"},
    {function() optim.Lion({w}):step(function() end) end, "the closure returned nil, expected the loss"},
    {function() optim.CyclicLR(optim.Adagrad({w}), 0.1, 0.5) end, "CyclicLR: Adagrad has no momentum"},
    {function()
      local o = optim.SGD({w}, {lr = 1.0})
      optim.ChainedScheduler(o, {optim.OneCycleLR(o, 1.0, {total_steps = 5})})
    end, "ChainedScheduler: schedule 1 is OneCycleLR, whose rate is not a factor"},
  }
  for _, case in ipairs(cases) do testing.assert_error(case[1], case[2]) end
end

return tests
