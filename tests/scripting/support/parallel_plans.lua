-- SPDX-License-Identifier: Apache-2.0
-- V10, N04, N06-N09, N12, N15, N16, N11, N20-N29, N31, N36: what mh.parallelize takes, its stored plans, and weights.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local runs = require "support.parallel_runs"
local nn, optim = mh.nn, mh.optim
local seeded, plain, config_of = runs.seeded, runs.plain, runs.config_of

local ranks = mh.world_size()
local kF64 = {dtype = "float64"}
local S, R = mh.Shard, mh.Replicate
local tests = {}

local Mlp = nn.Module:extend("Mlp")
function Mlp:init(width)
  self.fc1, self.fc2 = nn.Linear(6, width or 9), nn.Linear(width or 9, 5)
  self:register_buffer("scale", mh.arange(5.0) + 1, {persistent = false})
end
function Mlp:forward(x) return self.fc2(self.fc1(x):gelu()) * self.scale end

local whole_unit = config_of(ranks, ranks)
local x = (function()
  mh.manual_seed(6)
  return mh.randn({4, 6}, kF64)
end)()

--- Fails identically on all ranks, with all of the strings.
local function refused(texts, fn)
  local message = testing.assert_error(fn, texts[1])
  for _, text in ipairs(texts) do
    if not message:find(text, 1, true) then error("the message lacks '" .. text .. "':\n" .. message, 0) end
  end
end

local count = 0
local function folder()
  count = count + 1
  local path = ("build/plans_of_tests/%d_%d"):format(ranks, count)
  mh._files.on_first_rank(function()
    os.remove(path .. "/Mlp/plan.json")
    os.remove(path .. "/Mlp/small/plan.json")
  end)
  return path
end
-- ---- Bad input ------------------------------------------------------------------------------------------------------

function tests.test_configurations_are_checked()
  local C = mh.ComputeConfig
  refused({"unknown field 'plan_ngpu'", "did you mean 'plan_ngpus'"}, function() C{plan_ngpu = 2} end)
  refused({"runtime_ngpus = 3 is not a multiple of plan_ngpus"}, function() C{plan_ngpus = 2, runtime_ngpus = 3} end)
  refused({"plan_ngpus is missing"}, function() C{} end)
  refused({"use_zero = 1, expected a boolean"}, function() C{plan_ngpus = 1, use_zero = 1} end)
  refused({"plan_ngpus = 0, expected a number of ranks"}, function() C{plan_ngpus = 0} end)
  refused({"ComputeConfig: pas_config.a = function, expected a number, a string, a boolean or a table of those"},
      function() C{plan_ngpus = 1, pas_config = {a = print}} end)
  refused({"'use_zero' cannot be changed"}, function() whole_unit.use_zero = true end)
  refused({"no field 'unit'"}, function() return whole_unit.unit end)
  testing.assert_equal({C{plan_ngpus = 2, runtime_ngpus = 6}.units, C{plan_ngpus = 3}.runtime_ngpus}, {3, 3})
end

function tests.test_N06_N07_dummy_arguments_go_by_name()
  local function try(module, dummy) return function() mh.parallelize(module, dummy, "tp", whole_unit) end end
  refused({"the dummy argument 'x' is missing", "forward(x)"}, try(seeded(Mlp), {}))
  refused({"forward has no argument 'y'", "forward(x)"}, try(seeded(Mlp), {x = x, y = x}))
  refused({"parallelize: expected an nn.Module, its class or a constructor, got Tensor float64 [4, 6]"},
      function() mh.parallelize(x, {x = x}, "tp", whole_unit) end)
  refused({"by the names of forward's arguments", "got Tensor float64 [4, 6]"}, try(seeded(Mlp), x))
  local Any = nn.Module:extend("Any")
  function Any:forward(...) return ... end
  refused({"forward of this Any names no arguments but takes any number (...)"}, try(Any(), {x = x}))
  local list = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5)):double()
  local expected = plain(list(x))
  testing.assert_close(plain(mh.parallelize(list, {x = x}, "tp", whole_unit)(x)), expected)  -- its first module's
  testing.assert_equal(list[2].weight.placements[2]:is_shard(1), true)
end

local Loss = nn.Module:extend("Loss")
function Loss:init() self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 3) end
function Loss:stages() return {self.first, self.second} end
function Loss:loss(y, sample) return mh.mse_loss(y, sample[2]) end
function Loss:forward(sample) return self:loss(self.second(self.first(sample[1])), sample) end
local sample = {x, mh.zeros({4, 3}, kF64)}

function tests.test_N04_N15_N16_N20_what_end2end_asks_for()
  local pipelined = config_of(ranks, ranks, {pas_config = {pipeline_nmicros = 2, pipeline_nstages = 2}})
  refused({"makes a pipeline of stages", "use_end2end = true"}, function()
    mh.parallelize(seeded(Loss), {sample = sample}, "hybrid", pipelined)
  end)
  local of_two = {pipeline_nmicros = 2, pipeline_nstages = 2}
  local trains = config_of(ranks, ranks, {pas_config = of_two, use_end2end = true})
  local net = mh.parallelize(seeded(Loss), {sample = sample}, "hybrid", trains)
  refused({"forward of an end2end module", "train_step"}, function() net(sample) end)
  refused({"train_step: 3 samples for 2 micro-batches", "fix   give 2 samples"},
      function() net:train_step{sample, sample, sample} end)
  refused({"is_dummy_batch is a list of 1 for 2 samples"}, function() net:train_step({sample, sample}, {true}) end)
  refused({"is_dummy_batch is {1, 0}, expected"}, function() net:train_step({sample, sample}, {1, 0}) end)
  refused({"scale_fn is 2, expected a function"}, function() net:train_step({sample, sample}, nil, 2) end)

  local plain_end2end = config_of(ranks, ranks, {use_end2end = true})
  local tp = mh.parallelize(seeded(Loss), {sample = sample}, "tp", plain_end2end)
  refused({"forward of an end2end module", "infer_step"}, function() tp(sample) end)
  refused({"expected a list of samples"}, function() tp:train_step(x) end)
  local Predicts = Loss:extend("Predicts")
  function Predicts:forward(given) return self.second(self.first(given[1])) end
  local predicts = mh.parallelize(seeded(Predicts), {given = sample}, "tp", plain_end2end)
  refused({"returns the loss first, one number; it returned Tensor float64 [4, 3]"},
      function() predicts:train_step{sample} end)
  refused({"train_step is for modules whose forward takes a sample"}, function()
    mh.parallelize(seeded(Mlp), {x = x}, "tp", whole_unit):train_step{x}
  end)
  local Other = Loss:extend("Other")
  function Other:stages() return {self.first, nn.Sequential(self.second, nn.Tanh())} end
  refused({"Other:stages() and Other:loss() give", "forward gives"}, function()
    mh.parallelize(seeded(Other), {sample = sample}, "hybrid", trains)
  end)
  refused({"2 stages were asked for, One:stages() gives 1"}, function()
    local One = Loss:extend("One")
    function One:stages() return {nn.Sequential(self.first, self.second)} end
    mh.parallelize(seeded(One), {sample = sample}, "hybrid", trains)
  end)
end

function tests.test_N08_N09_policies_are_checked()
  local function try(policy, config, options)
    return function() mh.parallelize(seeded(Mlp), {x = x}, policy, config or whole_unit, options) end
  end
  local function returning(placed) return try(function() return placed end) end
  local mesh = {{ranks}, {"tp"}}
  refused({"unknown policy 'hybrit'", "hybrid"}, try("hybrit"))
  refused({"policy 'dp' divides nothing within a unit, plan_ngpus = " .. ranks}, try("dp"))
  refused({"policy 'tp' has no option 'pipeline_nmicro'"}, try("tp", config_of(ranks, ranks,
      {pas_config = {pipeline_nmicro = 2}})))
  refused({("runtime_ngpus = %d, the run has %d ranks"):format(2 * ranks, ranks)},
      try("tp", config_of(ranks, 2 * ranks)))
  refused({"unknown option 'reus'", "reuse"}, try("tp", nil, {reus = "moo"}))
  refused({"unknown reuse 'mach'", "match"}, try("tp", nil, {reuse = "mach"}))
  refused({"unknown broadcast_strategy 'some'"}, try("tp", nil, {broadcast_strategy = "some"}))
  local once = mh.parallelize(seeded(Mlp), {x = x}, "tp", whole_unit)
  refused({"this Mlp was parallelized before"}, function() mh.parallelize(once, {x = x}, "tp", whole_unit) end)
  refused({"expected a ComputeConfig"}, try("tp", {plan_ngpus = ranks}))
  refused({"returned no table of placements"}, returning(7))
  refused({"unknown field 'parameters'", "parameter"}, returning{mesh = mesh, parameters = {}})
  refused({("has a mesh of %d = %d ranks, plan_ngpus is %d"):format(ranks + 1, ranks + 1, ranks)},
      returning{mesh = {{ranks + 1}, {"tp"}}})
  refused({"expert parallelism is not part of Moonhalo", "mh.Shard(0)"}, returning{mesh = {{ranks}, {"ep"}}})
  refused({"'fc1.weight' needs a list of 1 placement,"}, returning{mesh = mesh,
      parameter = {["fc1.weight"] = {S(0), R()}}})
  refused({"'fc3.weight'"}, returning{mesh = mesh, parameter = {["fc3.weight"] = {S(0)}}})
  refused({"inputs names the mesh dim 'dp'"}, returning{mesh = mesh, inputs = {dp = 0}})
  refused({"has a mesh dim \"pp\" and no stages"}, returning{mesh = {{ranks}, {"pp"}}})
  local function staged(stages) return function()
    mh.parallelize(seeded(Loss), {sample = sample}, function() return {mesh = {{ranks}, {"pp"}}, stages = stages} end,
      config_of(ranks, ranks, {use_end2end = true}))
  end end
  refused({"stage 1 has no module"}, staged{2, 0})
  refused({"the stages hold 3 modules, Loss:stages() gives 2"}, staged{2, 1})
end

-- ---- Policies of users ----------------------------------------------------------------------------------------------

-- Stages that are made again, of modules that are registered under two names.
function tests.test_N08_nodes_know_their_stages()
  local Twice = nn.Module:extend("Twice")
  function Twice:init()
    self.all = nn.ModuleList{nn.Linear(6, 9), nn.Linear(9, 5)}
    self.first, self.second = self.all[0], self.all[1]
  end
  function Twice:stages() return {nn.Sequential(self.first, nn.Tanh()), self.second} end
  function Twice:forward(x) return self:stages()[2](self:stages()[1](x)) end
  local graph
  local function replicated(seen, config)
    graph = seen
    return {mesh = {{config.plan_ngpus}, {"tp"}}, parameter = {}}
  end
  mh.parallelize(seeded(Twice), {x = x}, replicated, config_of(ranks, ranks))

  local nodes = {}
  for i, node in ipairs(graph.nodes) do nodes[i] = ("%s in %q: %s"):format(node.op, node.module, node.stage) end
  testing.assert_equal(nodes, {"linear in \"first\": 1", "tanh in \"Sequential:1\": nil", "linear in \"second\": 2"})
  testing.assert_equal(graph.stage_macs, {4 * 6 * 9, 4 * 9 * 5})
end

function tests.test_N06_N09_a_policy_of_the_users_reads_the_graph()
  local seen
  local function by_columns(graph, config)
    seen = graph
    local placed = {mesh = {{config.plan_ngpus}, {"tp"}}, parameter = {}}
    for _, node in ipairs(graph.nodes) do
      if node.op == "linear" then placed.parameter[node.inputs[2].parameter] = {S(config.user_config.dim)} end
    end
    return placed
  end
  local expected = plain(seeded(Mlp)(x))
  local net = mh.parallelize(seeded(Mlp), {x = x}, by_columns, config_of(ranks, ranks, {user_config = {dim = 1}}))

  testing.assert_close(plain(net(x)), expected)
  for _, layer in ipairs {net.fc1, net.fc2} do testing.assert_equal(layer.weight.placements[2]:is_shard(1), true) end
  local ops = {}
  for i, node in ipairs(seen.nodes) do ops[i] = ("%s in %q: %d"):format(node.op, node.module, node.macs) end
  testing.assert_equal(ops, {"linear in \"fc1\": 216", "gelu in \"\": 0", "linear in \"fc2\": 180", "mul in \"\": 0"})
  local first, second = seen.nodes[1], seen.nodes[2]
  testing.assert_equal({first.inputs[1].shape, first.inputs[1].dtype, first.inputs[2].parameter,
    first.outputs[1].shape}, {{4, 6}, "float64", "fc1.weight", {4, 9}})
  testing.assert_equal(first.outputs[1].value, second.inputs[1].value)
end

function tests.test_V10_autodist_within_a_limit_of_memory()
  local make = function() return Mlp(300) end
  local function plan(options, more)
    return mh.parallelize(make, {x = x}, "autodist", config_of(ranks, ranks, {pas_config = options}), more)
  end
  local options = {load_module = false, module_dtype = "float64"}
  local _, report = plan({}, options)
  local placed, limited = plan({macs_per_byte = 1e-9, memory_limit = report.candidates[#report.candidates].memory // 1},
      options)
  testing.assert_equal(limited.candidates[1].placed.stored, placed.stored)
  for _, list in ipairs {report, limited} do
    for i, one in ipairs(list.candidates) do
      local next_one = list.candidates[i + 1]
      testing.assert_equal(next_one == nil or (one.fits and not next_one.fits) or one.cost <= next_one.cost, true)
    end
  end
  -- In blocks a step sends more and a rank keeps less; the limit is between the two.
  local copied, stored
  for _, one in ipairs(report.candidates) do
    if one.sizes.dp == ranks and one.stored then stored = one elseif one.sizes.dp == ranks then copied = one end
  end
  testing.assert_equal({stored.memory < copied.memory, stored.bytes >= copied.bytes}, {true, true})
  testing.assert_equal(tostring(report):find("dp " .. ranks .. ", domain 1, tp 1, stored", 1, true) ~= nil, true)

  refused({"no plan fits into 100 bytes a rank", "bytes sent"}, function() plan({memory_limit = 100}, options) end)
  refused({"memory_limit = -1, expected a number above 0"}, function() plan({memory_limit = -1}, options) end)
  refused({"policy 'autodist' has no option 'memory'", "memory_limit"}, function() plan({memory = 1}, options) end)
  refused({"tries plans of 7 ranks out, the run has " .. ranks}, function()
    mh.parallelize(make, {x = x}, "autodist", config_of(7, 7), options)
  end)

  local kept = {gen_savedir = folder(), module_dtype = "float64", init_module_params = false}
  for i = 1, 2 do  -- deferred: nothing has values; the second time nothing is counted
    local net = plan({}, kept)()
    testing.assert_equal({net.parallel.planned, net.parallel.report ~= nil}, {i == 1, i == 1})
    testing.assert_equal(plain(net.fc1.weight):isnan():all():item(), true)
  end
end

function tests.test_V10_autodist_draws_no_random_numbers_and_leaves_buffers()
  local function net_of()
    mh.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 5)):double()
  end
  local whole = net_of()
  local expected = mh.rand{4}
  local net = mh.parallelize(net_of(), {x = x}, "autodist", whole_unit)

  testing.assert_equal(mh.rand{4}, expected)
  testing.assert_equal(net[1].training, true)
  for name, tensor in net:state_dict() do testing.assert_equal(plain(tensor), whole:state_dict()[name]) end
end

-- ---- A part of a model ----------------------------------------------------------------------------------------------

local Outer = nn.Module:extend("Outer")
function Outer:init() self.enter, self.inner, self.leave = nn.Linear(4, 6), Mlp(), nn.Linear(5, 2) end
function Outer:forward(input) return self.leave(self.inner(self.enter(input))) end

function tests.test_N12_N36_a_part_of_a_model_within_units()
  local units = ranks // 2
  mh.manual_seed(8)
  local input, target = mh.randn({6, 4}, kF64), mh.randn({6, 2}, kF64)
  local function train(net, given, label)
    local opt = optim.AdamW(net:parameters(), {lr = 0.02})
    for _ = 1, 5 do
      opt:zero_grad()
      mh.mse_loss(net(given), label):backward()
      opt:step()
    end
  end
  local whole, net = seeded(Outer), seeded(Outer)
  train(whole, input, target)
  mh.parallelize(net.inner, {x = mh.zeros({3, 6}, kF64)}, "tp", config_of(2, ranks))
  local unit = net.inner.parallel.mesh["unit"]
  mh.replicate(net, {mesh = unit})
  local rows = 6 // units

  train(net, input:narrow(0, unit.rank * rows, rows), mh.local_batch(target:narrow(0, unit.rank * rows, rows), unit))

  testing.assert_equal(net.inner.fc1.weight.placements[2]:is_shard(0), true)
  for name, tensor in net:named_parameters() do
    testing.assert_close(plain(tensor), whole:get_parameter(name):detach())
    if name:find("^enter") then testing.assert_equal(mh.equal(tensor:to_local():detach(), plain(tensor)), true) end
  end
end

-- ---- Plans on the disk ----------------------------------------------------------------------------------------------

local function exists(path) return mh._files.on_first_rank(function() return mh.files.exists(path) and "yes"
    or "no" end) == "yes" end

function tests.test_N23_N24_plans_are_kept_and_used_again()
  local path, asked = folder(), 0
  local function policy(_, config)
    asked = asked + 1
    return {mesh = {{config.plan_ngpus}, {"tp"}}, parameter = {["fc1.weight"] = {S(0)}}}
  end
  local function planned(reuse, config, make)
    local net = mh.parallelize(seeded(make or Mlp), {x = x}, policy, config or whole_unit,
        {gen_savedir = path, reuse = reuse})
    testing.assert_equal(net.fc1.weight.placements[2]:is_shard(0), true)
    testing.assert_close(plain(net(x)), plain(seeded(make or Mlp)(x)))
    return net.parallel.planned, asked
  end
  local other = config_of(ranks, ranks, {user_config = {a = 1}})
  local function wide() return Mlp(11) end

  testing.assert_equal({planned()}, {true, 1})
  testing.assert_equal(exists(path .. "/Mlp/plan.json"), true)
  testing.assert_equal({planned()}, {false, 1})
  testing.assert_equal({planned("moo")}, {false, 1})
  refused({"holds a plan of something else", "'config.user_config.a' was nothing, is 1", "reuse = \"moo\""},
      function() planned(nil, other) end)
  refused({"'model.tensors.fc1.bias' was float64[9], is float64[11]"}, function() planned(nil, nil, wide) end)
  testing.assert_equal({planned("moo", other)}, {true, 2})
  testing.assert_equal({planned("match", other)}, {false, 2})
  testing.assert_equal({planned("override", other)}, {true, 3})
  testing.assert_equal({planned("graph", other)}, {true, 4})
  testing.assert_equal({planned("graph", nil, wide)}, {true, 5})  -- of another graph
  mh.barrier()
  if mh.rank() == 0 then os.remove(path .. "/Mlp/plan.json") end
  testing.assert_equal({planned()}, {true, 6})
end

function tests.test_N24_graph_mode_gives_the_policy_the_graph_that_was_kept()
  local path, seen = folder(), {}
  local function policy(graph, config)
    seen[#seen + 1] = graph
    return {mesh = {{config.plan_ngpus}, {"tp"}}}
  end
  for _ = 1, 2 do mh.parallelize(seeded(Mlp), {x = x}, policy, whole_unit, {gen_savedir = path, reuse = "graph"}) end
  testing.assert_equal(seen[2], seen[1])
end

function tests.test_N24_a_damaged_plan_is_named()
  local path = folder()
  local function plan() return mh.parallelize(seeded(Mlp), {x = x}, "tp", whole_unit, {gen_savedir = path}) end
  plan()
  mh.barrier()
  if mh.rank() == 0 then
    local file <close> = assert(io.open(path .. "/Mlp/plan.json", "w"))
    file:write("{\"format\": 1")
  end
  refused({"plan.json' is not a plan that this version has written", "override"}, plan)
end

function tests.test_N25_instances_by_name()
  local path = folder()
  for width, name in pairs {[9] = "", [11] = "small"} do
    local net = mh.parallelize(seeded(Mlp, width), {x = x}, "tp", whole_unit,
        {gen_savedir = path, instance_name = name ~= "" and name or nil})
    testing.assert_equal(net.parallel.planned, true)
  end
  testing.assert_equal(exists(path .. "/Mlp/plan.json") and exists(path .. "/Mlp/small/plan.json"), true)
end

function tests.test_N26_plans_for_other_numbers_of_ranks()
  local path = folder()
  local far = config_of(3, 12)
  local plan = mh.parallelize(seeded(Mlp), {x = x}, "tp", far, {gen_savedir = path, load_module = false})
  testing.assert_equal({plan.mesh, plan.parameter["fc1.weight"]}, {{{3}, {"tp"}}, {"Shard(0)"}})
  -- Planned without the ranks of the run, loaded on them.
  local options = {gen_savedir = path, instance_name = "small", module_dtype = "float64", load_module = false}
  local made = mh.parallelize(Mlp, {x = x}, "tp", whole_unit, options)
  options.load_module = true
  local net = mh.parallelize(Mlp, {x = x}, "tp", whole_unit, options)()
  testing.assert_equal({net.parallel.planned, net.parallel.plan}, {false, made})
  testing.assert_equal(net.fc1.weight.placements[2]:is_shard(0), true)
end

-- ---- Weights --------------------------------------------------------------------------------------------------------

function tests.test_N21_strategies()
  for _, strategy in ipairs {"all", "code", "no_weights", "none"} do
    local path = folder()
    for k = 1, 2 do
      mh.manual_seed(strategy == "all" and mh.rank() or 5)  -- rank 0's weights count
      local net = mh.parallelize(Mlp():double(), {x = x}, "tp", whole_unit,
          {gen_savedir = path, broadcast_strategy = strategy})
      mh.manual_seed(strategy == "all" and 0 or 5)
      testing.assert_close(plain(net(x)), plain(Mlp():double()(x)))
      testing.assert_equal(net.parallel.planned, k == 1)
      mh.barrier()
    end
  end
end

-- Rank 1 must not find alone what rank 0 writes before rank 1 has looked.
function tests.test_N21_ranks_that_look_at_different_times()
  local path, exists = folder(), mh.files.exists
  mh.files.exists = function(name)
    local late = os.clock() + 0.2
    while mh.rank() == 1 and os.clock() < late do end
    return exists(name)
  end
  local done, net = pcall(mh.parallelize, seeded(Mlp), {x = x}, "tp", whole_unit,
      {gen_savedir = path, broadcast_strategy = "none"})
  mh.files.exists = exists
  testing.assert_equal({done, done and net.parallel.planned or net}, {true, true})
end

function tests.test_N21_the_plan_of_rank_0_counts()
  local function policy(_, config)
    return {mesh = {{config.plan_ngpus}, {"tp"}}, parameter = {["fc1.weight"] = {S(mh.rank() == 0 and 1 or 0)}}}
  end
  for _, strategy in ipairs {"all", "code", "no_weights"} do
    local net = mh.parallelize(seeded(Mlp), {x = x}, policy, whole_unit, {broadcast_strategy = strategy})
    testing.assert_equal(net.fc1.weight.placements[2]:is_shard(1), true)
  end
end

-- Parameters of enough elements, their gradients and the states of AdamW are in blocks over the units.
function tests.test_N11_N31_zero_divides_by_the_units()
  local size = ranks // 2
  local function check(net, name, dim)
    local parameter = net:get_parameter(name)
    local opt = mh.build_optimizer(net, optim.AdamW, {lr = 0.1})
    testing.assert_equal(parameter.placements[dim]:is_stored(), true)
    return parameter, opt
  end
  local net = mh.parallelize(seeded(Mlp, 300), {x = x}, size > 1 and "tp" or "dp",
      config_of(size, ranks, {use_zero = true}))
  local weight, opt = check(net, "fc1.weight", 1)
  net(mh.local_batch(x:clone())):sum():backward()
  opt:step()
  for i, parameter in ipairs(net:parameters()) do
    local state = opt:state_dict().state[i].exp_avg
    testing.assert_equal(state.placements, parameter.placements)
  end
  testing.assert_equal(weight:to_local():numel(), 1800 // ranks)
  -- One unit: over the data dim of the plan.
  local data = mh.parallelize(seeded(Mlp, 300), {x = x}, "data", config_of(ranks, ranks, {use_zero = true}))
  testing.assert_equal(check(data, "fc1.weight", 2):to_local():numel(), 1800 // ranks)
  -- A pipeline: on the mesh of its stages.
  if ranks < 4 then return end
  local Deep = Loss:extend("Deep")
  function Deep:init() self.first, self.second = nn.Linear(6, 300), nn.Linear(300, 3) end
  local pipe = mh.parallelize(seeded(Deep), {sample = sample}, "pp",
      config_of(2, ranks, {use_zero = true, use_end2end = true}))
  for name, parameter in pipe:named_parameters() do
    testing.assert_equal({name, parameter.placements[1]:is_stored()}, {name, name == "first.weight"})
  end
end

function tests.test_N22_units_get_the_weights_of_the_first()
  local size = ranks // 2
  local net = mh.parallelize(seeded(Mlp), {x = x}, size > 1 and "tp" or "dp", config_of(size, ranks))
  local expected = {}
  for name, tensor in net:state_dict() do expected[name] = plain(tensor):clone() end
  mh.no_grad(function()
    if mh.rank() >= size then
      for _, tensor in ipairs(net:parameters()) do tensor:to_local():fill_(0 / 0) end
    end
  end)

  mh.broadcast_weights(net, size)

  for name, tensor in net:state_dict() do testing.assert_equal(plain(tensor), expected[name]) end
  mh.manual_seed(mh.rank() % size + 3)
  local like_first = Mlp()
  mh.manual_seed(mh.rank() + 3)
  local own = Mlp()
  testing.assert_equal(mh.broadcast_weights(own, size).fc1.weight, like_first.fc1.weight)
  refused({("%d ranks, plan_ngpus = 3"):format(ranks)}, function() mh.broadcast_weights(own, 3) end)
  local stored = mh.parallelize(seeded(Mlp, 300), {x = x}, size > 1 and "tp" or "dp",
      config_of(size, ranks, {use_zero = true}))
  refused({"is in blocks over the units"}, function() mh.broadcast_weights(stored, size) end)
end

function tests.test_N27_the_dtype_of_a_module()
  for _, given in ipairs {seeded(Mlp), Mlp} do
    local net = mh.parallelize(given, {x = x:float()}, "tp", whole_unit, {module_dtype = "float32"})
    if given == Mlp then net = net() end
    for _, tensor in ipairs(net:parameters()) do testing.assert_equal(tensor.dtype, "float32") end
  end
end

function tests.test_N29_parameters_without_values_until_they_are_loaded()
  local path, source = "build/plans_of_tests/weights_" .. ranks, seeded(Mlp)
  mh.checkpoint.save(path, {model = source})
  for _, more in ipairs {{}, {use_zero = true}} do
    local net = mh.parallelize(Mlp, {x = x:to("float64")}, "tp", config_of(2, ranks, more), {
      init_module_params = false, module_dtype = "float64", module_fn = function() return Mlp() end})
    for _, tensor in ipairs(net:parameters()) do testing.assert_equal(plain(tensor):isnan():all():item(), true) end

    mh.checkpoint.load(path, {model = net})

    testing.assert_equal(net.fc1.weight.placements[2]:is_shard(0), true)
    testing.assert_close(plain(net(mh.local_batch(x:clone()))):narrow(0, 0, 4), plain(source(x)))
  end
end

return tests
