-- SPDX-License-Identifier: Apache-2.0
-- Optimizers and schedules against the numbers of PyTorch's own on the same problem.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local optim, nn = mh.optim, mh.nn

local kF64 = {dtype = "float64", requires_grad = true}

local function problem()
  local w, b = mh.tensor({1.0, -2.0, 3.0}, kF64), mh.tensor({0.5}, kF64)
  local c = mh.tensor({1.0, 2.0, 3.0}, {dtype = "float64"})
  return w, b, function() return ((w * c - b) ^ 2):sum() + (w ^ 4):sum() * 0.1 end
end

local function closure_of(opt, loss)
  return function()
    opt:zero_grad()
    local value = loss()
    value:backward()
    return value
  end
end

local function run(opt, loss, steps)
  local closure = closure_of(opt, loss)
  for _ = 1, steps do
    if opt.name == "LBFGS" then
      opt:step(closure)
    else
      closure()
      opt:step()
    end
  end
end

local function values(w, b)
  local list = w:tolist()
  list[#list + 1] = b:item()
  return list
end

-- name, optimizer of (w, b), w and b after 5 steps
local cases = {
  {"SGD", function(w, b) return optim.SGD({w, b}, {lr = 0.01}) end,
    {0.946027215395, -1.137211392796, 1.125558374887, 0.702118956312}},
  {"SGD_nesterov", function(w, b)
    return optim.SGD({w, b}, {lr = 0.01, momentum = 0.9, nesterov = true, weight_decay = 0.1})
  end, {0.834354476205, 0.414990060629, -0.948998965354, 0.607638963089}},
  {"SGD_dampening", function(w, b) return optim.SGD({w, b}, {lr = 0.01, momentum = 0.9, dampening = 0.5}) end,
    {0.902339810089, -0.411363257621, -0.714763604695, 0.920373033902}},
  {"Adam", function(w, b) return optim.Adam({w, b}, {lr = 0.1, weight_decay = 0.1}) end,
    {0.587455346789, -1.502108185599, 2.50330019688, 0.99047500595}},
  {"Adam_amsgrad", function(w, b) return optim.Adam({w, b}, {lr = 0.1, betas = {0.8, 0.9}, amsgrad = true}) end,
    {0.620474874982, -1.502285873301, 2.503596339003, 0.989995555925}},
  {"AdamW", function(w, b) return optim.AdamW({w, b}, {lr = 0.1}) end,
    {0.594306274676, -1.493195026296, 2.489431392944, 0.987131152866}},
  {"RMSprop", function(w, b) return optim.RMSprop({w, b}, {lr = 0.05}) end,
    {1.138655315958, -0.576798711122, 1.671551945987, 1.508888980111}},
  {"RMSprop_centered", function(w, b)
    return optim.RMSprop({w, b}, {lr = 0.05, momentum = 0.5, centered = true, alpha = 0.9})
  end, {0.798754037939, -1.03864505337, 2.067939327352, 1.321170784164}},
  {"Adagrad", function(w, b) return optim.Adagrad({w, b}, {lr = 0.3, lr_decay = 0.1,
    initial_accumulator_value = 0.1}) end, {0.87926393922, -1.203048532122, 2.227285843469, 1.186434709885}},
  {"LBFGS", function(w, b) return optim.LBFGS({w, b}, {lr = 0.5, max_iter = 4}) end,
    {0.240727098533, 0.12772829295, 0.084257466178, 0.250979779006}},
  {"LBFGS_line_search", function(w, b) return optim.LBFGS({w, b}, {line_search_fn = "strong_wolfe", max_iter = 3}) end,
    {0.380006253515, 0.20017176605, 0.143474772072, 0.40720081932}},
  {"groups", function(w, b)
    return optim.AdamW({{params = w, lr = 0.2}, {params = {b}, weight_decay = 0.0}}, {lr = 0.1})
  end, {0.426489528721, -0.997808363638, 1.989581305617, 0.983881547862}},
}

local tests = {}

for _, case in ipairs(cases) do
  tests["test_" .. case[1]] = function()
    local w, b, loss = problem()

    run(case[2](w, b), loss, 5)

    testing.assert_close(mh.tensor(values(w, b), {dtype = "float64"}), case[3], {rtol = 1e-9, atol = 1e-11})
  end

  -- Saved after 3 steps and loaded into a new optimizer, the run goes on bit by bit.
  tests["test_resumed_" .. case[1]] = function()
    local w, b, loss = problem()
    local opt = case[2](w, b)
    run(opt, loss, 3)
    local state = opt:state_dict()
    local w2, b2, loss2 = problem()
    local again = case[2](w2, b2)
    mh.no_grad(function() w2:copy_(w) b2:copy_(b) end)
    again:load_state_dict(state)
    run(opt, loss, 3)
    run(again, loss2, 3)

    testing.assert_equal(values(w2, b2), values(w, b))
  end
end

function tests.test_groups_are_read_and_set()
  local w, b = problem()
  local opt = optim.Adam({{params = {w}}, {params = {b}, lr = 0.5}}, {lr = 0.1, betas = {0.5, 0.6}})

  testing.assert_equal({#opt.param_groups, opt.param_groups[1].lr, opt.param_groups[2].lr}, {2, 0.1, 0.5})
  opt.param_groups[2].lr = 0.25
  opt.param_groups[2].betas = {0.1, 0.2}
  testing.assert_equal({opt.param_groups[2].lr, opt.param_groups[2].betas, opt.param_groups[1].betas},
    {0.25, {0.1, 0.2}, {0.5, 0.6}})
  testing.assert_equal(#opt.param_groups[1].params, 1)
  local extra = mh.tensor({1.0}, kF64)
  opt:add_param_group{params = {extra}, lr = 0.75}
  testing.assert_equal(opt.param_groups[3].lr, 0.75)
end

function tests.test_wrong_optimizers_are_refused()
  local w, b = problem()
  local refused = {
    {function() optim.AdamW({w}, {learning_rate = 1}) end, "AdamW: unknown option 'learning_rate'"},
    {function() optim.AdamW({w}, {lr = -1}) end, "AdamW: option 'lr' is -1, it must not be negative"},
    {function() optim.Adam({w}, {betas = {0.9, 1.0}}) end, "option 'betas' holds 1, expected 0 <= beta < 1"},
    {function() optim.SGD({}, {lr = 1}) end, "SGD: the list of parameters is empty"},
    {function() optim.SGD({w, w}, {lr = 1}) end, "SGD: a parameter is given twice"},
    {function() optim.SGD({w * 2}, {lr = 1}) end, "is the result of an operation"},
    {function() optim.SGD({{lr = 1}}) end, "a parameter group has no 'params'"},
    {function() return optim.Adamw end, "optim: no optimizer or schedule 'Adamw'; did you mean"},
    {function() optim.LBFGS({w}):step() end, "step: LBFGS evaluates the loss several times"},
    {function() optim.SGD({w}).param_groups[1].lrr = 1 end, "ParamGroup: SGD has no option 'lrr'; did you mean 'lr'?"},
    {function() optim.Adam({w}):load_state_dict(optim.SGD({w}):state_dict()) end,
    "the state is that of 'SGD', the optimizer is Adam"},
    {function() optim.Adam({w}):load_state_dict(optim.Adam({w, b}):state_dict()) end,
    "'state' is of 2 parameters, the optimizer has 1"},
    {function() optim.LBFGS({w}):step(function() end) end, "the closure returned nil, expected the loss"},
  }
  for _, case in ipairs(refused) do testing.assert_error(case[1], case[2]) end
end

function tests.test_an_error_in_a_closure_keeps_its_place()
  local w = problem()
  local opt = optim.SGD({w}, {lr = 0.1})
  testing.assert_error(function() opt:step(function() error("no data") end) end, "no data")
end

-- name, schedule of the optimizer, rates of 12 steps from 0.5
local schedules = {
  {"StepLR", function(o) return optim.StepLR(o, 4, {gamma = 0.5}) end,
    {0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.125, 0.125, 0.125, 0.125}},
  {"MultiStepLR", function(o) return optim.MultiStepLR(o, {3, 5, 9}, {gamma = 0.2}) end,
    {0.5, 0.5, 0.5, 0.1, 0.1, 0.02, 0.02, 0.02, 0.02, 0.004, 0.004, 0.004}},
  {"ExponentialLR", function(o) return optim.ExponentialLR(o, 0.9) end,
    {0.5, 0.45, 0.405, 0.3645, 0.32805, 0.295245, 0.2657205, 0.23914845, 0.215233605, 0.1937102445, 0.17433922005,
  0.156905298045}}, {"LinearLR", function(o) return optim.LinearLR(o, 0.25, {total_iters = 4}) end,
    {0.125, 0.21875, 0.3125, 0.40625, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5}},
  {"ConstantLR", function(o) return optim.ConstantLR(o, 0.5, {total_iters = 3}) end,
    {0.25, 0.25, 0.25, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5}},
  {"PolynomialLR", function(o) return optim.PolynomialLR(o, 6, {power = 2.0}) end,
    {0.5, 0.347222222222, 0.222222222222, 0.125, 0.055555555556, 0.013888888889, 0, 0, 0, 0, 0, 0}},
  {"CosineAnnealingLR", function(o) return optim.CosineAnnealingLR(o, 10, {eta_min = 0.01}) end,
    {0.5, 0.488008846492, 0.453209163622, 0.399007386812, 0.330709163622, 0.255, 0.179290836378, 0.110992613188,
      0.056790836378, 0.021991153508, 0.01, 0.021991153508}},
  {"CosineAnnealingWarmRestarts", function(o) return optim.CosineAnnealingWarmRestarts(o, 3, {T_mult = 2}) end,
    {0.5, 0.375, 0.125, 0.5, 0.466506350946, 0.375, 0.25, 0.125, 0.033493649054, 0.5, 0.491481456572, 0.466506350946}},
  {"LambdaLR", function(o) return optim.LambdaLR(o, function(epoch) return 1 / (1 + epoch) end) end,
    {0.5, 0.25, 0.166666666667, 0.125, 0.1, 0.083333333333, 0.071428571429, 0.0625, 0.055555555556, 0.05,
  0.045454545455, 0.041666666667}}, {"SequentialLR", function(o)
    return optim.SequentialLR(o, {optim.LinearLR(o, 0.1, {total_iters = 3}),
        optim.CosineAnnealingLR(o, 8, {eta_min = 0.01})}, {3})
  end, {0.05, 0.2, 0.35, 0.5, 0.481350485465, 0.428241161391, 0.348757440929, 0.255, 0.161242559071, 0.081758838609,
    0.028649514535, 0.01}},
  {"SequentialLR_of_three", function(o)
    local parts = {optim.ConstantLR(o, 0.5, {total_iters = 9}), optim.ExponentialLR(o, 0.5),
        optim.StepLR(o, 2, {gamma = 0.1})}
    return optim.SequentialLR(o, {schedulers = parts, milestones = {2, 6}})
  end, {0.25, 0.25, 0.5, 0.25, 0.125, 0.0625, 0.5, 0.5, 0.05, 0.05, 0.005, 0.005}},
  {"constant_with_warmup", function(o) return optim.get_constant_schedule_with_warmup(o, 4) end,
    {0, 0.125, 0.25, 0.375, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5}},
  {"linear_with_warmup", function(o) return optim.get_linear_schedule_with_warmup(o, 2, 10) end,
    {0, 0.25, 0.5, 0.4375, 0.375, 0.3125, 0.25, 0.1875, 0.125, 0.0625, 0, 0}},
  {"cosine_with_warmup", function(o) return optim.get_cosine_schedule_with_warmup(o,
    {num_warmup_steps = 2, num_training_steps = 10}) end,
    {0, 0.25, 0.5, 0.480969883128, 0.426776695297, 0.345670858091, 0.25, 0.154329141909, 0.073223304703, 0.019030116872,
  0, 0.019030116872}}, {"OneCycleLR", function(o) return optim.OneCycleLR(o, 1.0, 12) end,
    {0.04, 0.34978965422, 0.879285159122, 0.994415435451, 0.933012969841, 0.81174565395, 0.647378997695, 0.462637102667,
      0.283060998209, 0.133477530189, 0.034566987425, 4e-06}},
  {"OneCycleLR_three_phases", function(o)
    return optim.OneCycleLR(o, {max_lr = 1.0, epochs = 3, steps_per_epoch = 4, three_phase = true,
        anneal_strategy = "linear"})
  end, {0.04, 0.409230769231, 0.778461538462, 0.852307692308, 0.483076923077, 0.113846153846, 0.034483310345,
    0.027587448276, 0.020691586207, 0.013795724138, 0.006899862069, 4e-06}},
}

for _, case in ipairs(schedules) do
  tests["test_" .. case[1]] = function()
    local w = problem()
    local opt = optim.SGD({w}, {lr = 0.5})
    local schedule = case[2](opt)
    local rates, half = {}, nil
    for step = 1, 12 do
      rates[step] = opt.param_groups[1].lr
      if step == 6 then half = schedule:state_dict() end
      if step < 12 then schedule:step() end
    end

    testing.assert_close(mh.tensor(rates, {dtype = "float64"}), case[3], {atol = 1e-11})
    schedule:load_state_dict(half)
    testing.assert_equal(opt.param_groups[1].lr, rates[6])
    schedule:step()
    testing.assert_equal(opt.param_groups[1].lr, rates[7])
  end
end

function tests.test_SequentialLR_refuses()
  local opt, other = optim.SGD({(problem())}, {lr = 0.5}), optim.SGD({(problem())}, {lr = 0.5})
  local function refused(schedulers, milestones, text)
    testing.assert_error(function() optim.SequentialLR(opt, schedulers, milestones) end, "SequentialLR: " .. text)
  end
  local warm, late = optim.LinearLR(opt), optim.ExponentialLR(opt, 0.9)
  refused({warm, late}, {4, 8},
      "2 milestones for 2 schedules\n  fix   give the step at which each but the first begins")
  refused({warm, late, late}, {4, 4}, "milestones must be above 0 and ascend")
  refused({warm, optim.ExponentialLR(other, 0.9)}, {4}, "schedule 2 has another optimizer")
  refused({warm, optim.ReduceLROnPlateau(opt)}, {4}, "schedule 2 does not follow the step count alone")
  local schedule = optim.SequentialLR(opt, {warm, late}, {4})
  local state = schedule:state_dict()
  state.schedulers[2] = nil
  testing.assert_error(function() schedule:load_state_dict(state) end,
      "load_state_dict: 'schedulers' is 1, expected 2 states")
end

function tests.test_ReduceLROnPlateau()
  local w = problem()
  local opt = optim.SGD({w}, {lr = 0.5})
  local schedule = optim.ReduceLROnPlateau(opt, {factor = 0.5, patience = 1, cooldown = 1, min_lr = 0.1})
  local rates = {}
  for i, metric in ipairs{1, 0.9, 0.9, 0.95, 0.9, 0.9, 0.9, 0.8, 0.9, 0.9, 0.9, 0.9} do
    schedule:step(metric)
    rates[i] = opt.param_groups[1].lr
  end

  testing.assert_equal(rates, {0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125, 0.125, 0.125, 0.1, 0.1, 0.1})
end

function tests.test_a_network_learns()
  mh.manual_seed(1)
  local x = mh.linspace(-1, 1, 64):reshape{64, 1}
  local y = (x * 3):sin()
  local net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
  local opt = optim.AdamW(net:parameters(), {lr = 2e-2})
  local loss
  for _ = 1, 400 do
    opt:zero_grad()
    loss = mh.mse_loss(net(x), y)
    loss:backward()
    opt:step()
  end

  testing.assert_equal(loss:item() < 1e-3, true)
end

return tests
