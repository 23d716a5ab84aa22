-- SPDX-License-Identifier: Apache-2.0
-- V10, X14: plans whose parts are computed again in backward: which parts, found by the policy "autodist" where memory
-- is short, kept on the disk and carried out.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local machine = require "support.planted_machine"
local own_path = require "support.own_path"
local runs = require "support.parallel_runs"
local classes = require "support.parallel_classes"
local nn = mh.nn
local seeded, plain, config_of = runs.seeded, runs.plain, runs.config_of

local ranks = mh.world_size()
local kF64 = {dtype = "float64"}
local tests = {}

local function refused(part, fn) testing.assert_error(fn, part) end

local function block(width, hidden)
  return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width), nn.Tanh())
end

--- The module that `make` gives, divided as `plan` says.
local function divided(make, dummy, plan, more)
  return mh.parallelize(seeded(make), dummy, function() return plan end, config_of(ranks, ranks, more))
end

-- ---- Placements -----------------------------------------------------------------------------------------------------

local Pair = nn.Module:extend("Pair")
function Pair:init() self.inner = nn.Linear(8, 5) end
function Pair:forward(x) return {value = self.inner(x), twice = {x * 2}}, 7 end

--- Its blocks are in a list, one gives tensors in tables, a norm has statistics, and one draws random numbers.
local Blocks = nn.Module:extend("Blocks")
function Blocks:init()
  self.first = nn.Linear(6, 180)
  self.blocks = nn.ModuleList{block(180, 9), nn.Sequential(nn.BatchNorm1d(180), nn.Linear(180, 8), nn.Dropout(0.5))}
  self.pair = Pair()
end
function Blocks:forward(x)
  x = self.first(x)
  for _, one in self.blocks:each() do x = one(x) end
  local results, seven = self.pair(x)
  return results.value:square():sum() + results.twice[1]:sum() * seven
end

--- The loss, gradients and buffers of a step on `x`.
local function step_of(net, x)
  mh.manual_seed(12)
  net:train()
  local loss = net(x)
  loss:backward()
  mh.finish_grad_sync(net)
  local seen = {loss = plain(loss)}
  for name, tensor in net:named_parameters() do seen["gradient of " .. name] = plain(tensor.grad) end
  for name, tensor in net:named_buffers() do seen[name] = plain(tensor):to("float64") end
  return seen
end

--- The same of two steps with parts that are computed again, after that of a plan which keeps all.
local function compare(make, stored, recompute)
  local x, seen = runs.random(6, {4 * ranks, 6}), {}
  for i, parts in ipairs {false, recompute} do
    local plan = {mesh = {{ranks}, {"dp"}}, inputs = {dp = 0}, stored = stored and "dp" or nil,
                  recompute = parts or nil}
    local net = divided(make, {x = x}, plan)
    testing.assert_equal(net.parallel.plan.recompute, parts or nil)
    seen[i] = {step_of(net, x), step_of(net, x)}
  end
  for step = 1, 2 do testing.assert_all_close(seen[2][step], seen[1][step]) end
end

function tests.test_V10_parts_that_recompute_give_the_same_gradients()
  for _, stored in ipairs {false, true} do
    compare(Blocks, stored, {{"blocks.0.0", "blocks.0.1", "blocks.0.2"}, {"blocks.1"}, {"pair"}})
  end
end

--- Each use of its weight writes buffers and then divides by what they say; one block is used twice.
local Spectral = nn.Module:extend("Spectral")
function Spectral:init()
  local function normed(inputs, outputs) return nn.utils.parametrizations.spectral_norm(nn.Linear(inputs, outputs)) end
  self.first = nn.Linear(6, 7)
  self.twice = nn.Sequential(normed(7, 7), nn.Tanh())
  self.last = nn.Sequential(normed(7, 5), nn.Tanh())
end
function Spectral:forward(x) return self.last(self.twice(self.twice(self.first(x)))):square():sum() end

function tests.test_V10_buffers_are_read_as_in_the_first_run()
  compare(Spectral, false, {{"twice"}, {"last.0", "last.1"}})
end

function tests.test_V10_results_that_may_hide_tensors_are_one_error()
  local Hidden = nn.Module:extend("Hidden")
  function Hidden:init(wrap) self.inner, self.wrap = nn.Linear(6, 5), wrap end
  function Hidden:forward(x) return self.wrap(self.inner(x)) end
  local function try(wrap)
    local net = seeded(Hidden, wrap)
    return net, function() return net(mh.ones({3, 6}, kF64)) end
  end
  local function normal(mean) return {name = "y", {mh.distributions.Normal(mean, 1.0)}} end
  for wanted, wrap in pairs {Normal = normal, ["function"] = function(y) return y, function() return y end end} do
    local net, call = try(wrap)
    local undo = mh.checkpoint_modules(net, "")
    mh.no_grad(call)
    refused("what Hidden returns is computed again, and gradients reach tensors and tables of tensors alone", call)
    refused(wanted, call)
    undo.remove()
    call()
  end
end

function tests.test_V10_stages_of_a_pipeline_recompute()
  if ranks ~= 2 then return end
  local Trained, sample = classes.Trained, {runs.random(7, {5, 6}), target = runs.random(8, {5, 3})}
  local function trained(recompute)
    local net = divided(Trained, {sample = sample}, {mesh = {{2}, {"pp"}}, stages = {2, 2}, recompute = recompute},
      {use_end2end = true, pas_config = {pipeline_nmicros = 3}})
    local seen = {}
    for i, loss in ipairs(net:train_step{sample, sample, sample}) do seen["loss " .. i] = plain(loss) end
    for name, tensor in net:named_parameters() do seen[name] = plain(tensor.grad) end
    return seen
  end
  testing.assert_all_close(trained{{"fc1"}, {"fc3.0", "fc3.1"}}, trained())
end

function tests.test_V10_wrong_parts_are_one_error()
  local function try(recompute)
    return function()
      divided(Blocks, {x = mh.zeros({4, 6}, kF64)}, {mesh = {{ranks}, {"dp"}}, recompute = recompute})
    end
  end
  refused("recompute = 'blocks', expected a list of lists of names", try("blocks"))
  refused("recompute has 'blocks', expected a list of lists of names", try{"blocks"})
  refused("recompute names the module 'block'", try{{"block"}})
  refused("recompute has modules that do not follow each other in a Sequential", try{{"blocks.0", "blocks.1"}})
  refused("recompute has modules that do not follow each other in a Sequential", try{{"blocks.0.0", "blocks.0.2"}})
  refused("recompute names the module 'blocks.0.1' twice",
    try{{"blocks.0.0", "blocks.0.1"}, {"blocks.0.1", "blocks.0.2"}})
end

function tests.test_V10_modules_of_a_sequential_may_have_names()
  local function make()
    local net = nn.Sequential()
    for _, name in ipairs {"enter", "7", "leave", "act"} do
      net:add_module(name, name == "act" and nn.Tanh() or nn.Linear(6, 6))
    end
    return net
  end
  local Named = nn.Module:extend("Named")
  function Named:init() self.layers = make() end
  function Named:forward(x) return self.layers(x):square():sum() end
  testing.assert_equal(require("moonhalo.policy.recompute").parts(make()), {{"enter", "7"}, {"leave", "act"}})
  compare(Named, false, {{"layers.enter", "layers.7"}, {"layers.leave", "layers.act"}})
end

-- ---- Which parts ----------------------------------------------------------------------------------------------------

function tests.test_V10_parts_are_blocks_stages_and_runs_of_layers()
  local parts = require("moonhalo.policy.recompute").parts
  local function layers(count)
    local list = {}
    for i = 1, count do list[i] = i % 2 == 1 and nn.Linear(4, 4) or nn.Tanh() end
    return nn.Sequential(table.unpack(list))
  end
  testing.assert_equal(parts(layers(3)), {{"0", "1"}})
  testing.assert_equal(parts(layers(9)), {{"0", "1", "2"}, {"3", "4", "5"}, {"6", "7", "8"}})
  testing.assert_equal(parts(nn.Sequential(block(8, 9), nn.Tanh(), block(8, 9))), {{"0"}, {"2"}})
  testing.assert_equal(parts(Blocks()), {{"blocks.0.0", "blocks.0.1"}, {"blocks.0.2", "blocks.0.3"}, {"blocks.1"},
    {"pair"}})
  testing.assert_equal(parts(classes.Trained()), {{"fc1"}, {"fc2"}, {"fc3"}})
  testing.assert_equal(parts(nn.Sequential(nn.Sequential(block(8, 9), block(8, 9)), nn.Linear(8, 8))),
    {{"0.0"}, {"0.1"}})
  testing.assert_equal(parts(classes.Mlp()), {})
end

-- ---- The policy "autodist" ------------------------------------------------------------------------------------------

-- Activations are 20 MiB a block on each rank, of which recomputation keeps 2; parameters are small.
local kBlocks = 6
local function chain()
  local list = {}
  for i = 1, kBlocks do list[i] = block(16, 64) end
  return nn.Sequential(table.unpack(list))
end
local function samples(ones) return mh[ones and "ones" or "zeros"]{32768 * ranks, 16} end

local function planned(options, more)
  mh.manual_seed(5)
  options.most_tensor, options.most_data = 1, ranks
  return mh.parallelize(chain(), {x = samples()}, "autodist", config_of(ranks, ranks, {pas_config = options}), more)
end

local function candidate_of(report, stored, recompute)
  for _, one in ipairs(report.candidates) do
    if one.stored == stored and one.recompute == recompute then return one end
  end
end

--- The loss and gradients of a step, and the peak of this rank's memory in a later one.
local function run(net)
  local optimizer, x = mh.optim.SGD(net:parameters(), {lr = 0.0}), samples(true)
  local function step()
    optimizer:zero_grad()
    local loss = net(x):square():mean()
    loss:backward()
    optimizer:step()
    return loss
  end
  local seen = {loss = plain(step())}
  for name, tensor in net:named_parameters() do seen[name] = plain(tensor.grad) end
  collectgarbage()
  mh.memory{reset = true}
  step()
  return seen, mh.memory().peak
end

function tests.test_V10_a_plan_that_recomputes_is_found_and_runs_within_the_limit()
  local of, folder = machine(1e10, 1e11, 1e11, 1e-6), own_path("recomputing_plans")
  local _, free = planned({machine = of}, {load_module = false})
  local kept = free.candidates[1]
  local again = candidate_of(free, kept.stored, true)
  testing.assert_equal({kept.recompute, again.seconds}, {false, nil})
  assert(again.why:find("never faster than the same one that keeps", 1, true))
  local limit = kept.memory * 2 // 3

  local net = planned({machine = of, memory_limit = limit}, {gen_savedir = folder})

  local first = net.parallel.report.candidates[1]
  testing.assert_equal({first.recompute, first.fits, first.memory <= limit}, {true, true, true})
  local parts = {}
  for i = 1, kBlocks do parts[i] = {tostring(i - 1)} end
  testing.assert_equal(net.parallel.plan.recompute, parts)
  testing.assert_equal(candidate_of(net.parallel.report, first.stored, false).fits, false)
  local seen, peak = run(net)
  assert(peak <= limit, ("%d bytes at the peak of a real step, %d allowed"):format(peak, limit))

  -- The plan of the disk does the same; activations that are kept need more.
  local again = planned({machine = of, memory_limit = limit}, {gen_savedir = folder})
  testing.assert_equal({again.parallel.planned, again.parallel.plan.recompute}, {false, parts})
  local other, other_peak = run(again)
  testing.assert_all_close(other, seen)
  assert(other_peak <= limit)
  local keeps = planned{machine = of, most_rows = 1}
  local wanted, wanted_peak = run(keeps)
  testing.assert_equal(keeps.parallel.plan.recompute, nil)
  testing.assert_all_close(seen, wanted, {rtol = 1e-4, atol = 1e-6})
  assert(wanted_peak > limit, ("%d bytes at the peak of a step that keeps activations"):format(wanted_peak))
end

function tests.test_V10_recompute_is_an_option()
  local of = machine(1e10, 1e11, 1e11, 1e-6)
  local function try(make, options)
    options.machine = of
    return function()
      return mh.parallelize(make(), {x = mh.zeros{12, 6}}, "autodist",
        config_of(ranks, ranks, {pas_config = options}), {load_module = false})
    end
  end
  local function layers() return nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 6)) end
  local function counted(options)
    local _, report = try(layers, options)()
    local count = 0
    for _, one in ipairs(report.candidates) do count = count + (one.recompute and 1 or 0) end
    return count > 0
  end
  testing.assert_equal({counted{}, counted{recompute = true}, counted{recompute = false}}, {true, true, false})
  refused("policy 'autodist': recompute is 3, expected true or false", try(layers, {recompute = 3}))
  refused("recompute = true, and Mlp has no part that can be computed again\n  have  modules of single layers",
    try(classes.Mlp, {recompute = true}))
end

function tests.test_V10_recompute_of_stages_without_parts_names_the_remedy()
  local sample = {mh.zeros{4, 6}, target = mh.zeros{4, 3}}
  local function try(class)
    return function()
      mh.parallelize(class(), {sample = sample}, "autodist", config_of(ranks, ranks,
        {use_end2end = true, pas_config = {machine = "h100", recompute = true}}), {load_module = false})
    end
  end
  refused("has no part that can be computed again\n  have  stages() makes a new module for stage 0 in " ..
    "each call, which has no name\n  fix   make stages in init", try(classes.Anew))
  local Layers = nn.Module:extend("Layers")
  Layers.init, Layers.forward, Layers.loss = classes.Anew.init, classes.Anew.forward, classes.Anew.loss
  function Layers:stages() return {self.a, self.b, self.c, self.d} end
  refused("and Layers has no part that can be computed again\n  have  stages() gives single layers", try(Layers))
end

return tests
