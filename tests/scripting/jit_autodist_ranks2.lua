-- SPDX-License-Identifier: Apache-2.0
-- V10, Y01: the policy "autodist" divides programs of TorchScript, by the time of their steps and by counts, on 2
-- ranks. Outputs, gradients and steps are those of the plain program.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local machine = require "support.planted_machine"
local own_path = require "support.own_path"
local runs = require "support.parallel_runs"
local nn = mh.nn

local ranks = mh.world_size()
local tests = {}

local function cnn()
  return nn.Sequential(nn.Conv2d(2, 6, 3, {padding = 1}), nn.GroupNorm(2, 6), nn.GELU(),
    nn.Conv2d(6, 2, 3, {padding = 1}))
end
local function mlp() return nn.Sequential(nn.Linear(32, 24 * 64), nn.GELU(), nn.Linear(24 * 64, 32)) end

--- Writes the program of make(), and returns what loads it.
local function program(make, x)
  local path = own_path(make == cnn and "cnn.pt" or "mlp.pt")
  mh.jit.trace(runs.seeded(make):eval(), {x}):save(path)
  mh.barrier()
  return function() return mh.jit.load(path) end
end

--- Losses, the gradients of the first step and the parameters after three steps.
local function trained(net, x)
  local optimizer, losses, gradients, after = mh.optim.AdamW(net:parameters(), {lr = 1e-2}), {}, {}, {}
  for step = 1, 3 do
    optimizer:zero_grad()
    local loss = net(x):square():mean()
    loss:backward()
    losses[step] = runs.plain(loss):item()
    for name, parameter in net:named_parameters() do
      if step == 1 then gradients[name] = runs.plain(parameter.grad):clone() end
    end
    optimizer:step()
  end
  for name, parameter in net:named_parameters() do after[name] = runs.plain(parameter):clone() end
  return {losses = losses, gradients = gradients, after = after}
end

local function check_same(found, expected)
  for step, loss in ipairs(expected.losses) do
    testing.assert_equal(math.abs(found.losses[step] - loss) < 1e-10, true)
  end
  for _, what in ipairs {"gradients", "after"} do
    local count = 0
    for name, tensor in pairs(expected[what]) do
      testing.assert_close(found[what][name], tensor)
      count = count + 1
    end
    testing.assert_equal(count, 4 + (expected.gradients["1.weight"] and 2 or 0))
  end
end

--- Divides the program as `options` say, checks that the plan is one that `is_right` accepts, and trains it.
local function check_divided(make, x, options, is_right)
  local load = program(make, x)
  local expected, output = trained(load(), x), runs.plain(load()(x))
  local net = mh.parallelize(load(), {argument_1 = x}, "autodist", runs.config_of(ranks, ranks, {pas_config = options}))
  local best = net.parallel.report.candidates[1]
  testing.assert_equal(is_right(best.sizes), true)
  testing.assert_close(runs.plain(net(x)), output)
  check_same(trained(net, x), expected)
end

local function cuts_the_domain(sizes) return sizes.domain * (sizes.columns or 1) == ranks end

function tests.test_V10_Y01_a_program_is_cut_over_its_domain_by_time()
  local x = runs.random(1, {1, 2, 96, 96})
  check_divided(cnn, x, {machine = machine(1e10, 1e11, 1e8, 1e-5)}, cuts_the_domain)
end

function tests.test_V10_Y01_layers_of_a_program_are_cut_by_time()
  local x = runs.random(1, {2, 32})
  check_divided(mlp, x, {machine = machine(1e11, 1e10, 1e8, 1e-6)}, function(sizes) return sizes.tp == ranks end)
end

function tests.test_V10_Y01_the_best_plans_of_a_program_are_measured()
  local x = runs.random(1, {2, 2, 24, 24})
  check_divided(cnn, x, {machine = machine(1e10, 1e11, 1e8, 1e-5), measure = 2}, function() return true end)
end

function tests.test_V10_Y01_a_program_is_divided_by_counts()
  local x = runs.random(1, {1, 2, 48, 48})
  check_divided(cnn, x, {}, cuts_the_domain)
end

return tests
