-- SPDX-License-Identifier: Apache-2.0
-- What mh.parallelize, optimizers and loads of parts refuse instead of passing over: N09, N17, N20, N24, N25, N30, N34,
-- N42; and N29 for the layers of which models consist.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local refused = require "support.refused"
local runs = require "support.parallel_runs"
local nn, optim = mh.nn, mh.optim
local seeded, plain, config_of = runs.seeded, runs.plain, runs.config_of
local random, kF64 = runs.random, runs.kF64

local ranks, mesh = mh.world_size(), runs.row()
local tests = {}

-- ---- Optimizers -----------------------------------------------------------------------------------------------------

local function lr_of(opt) return opt.param_groups[1].lr end

function tests.test_N30_a_config_stands_before_the_options_as_in_nnscaler()
  local config = config_of(1, ranks)
  local x = random(1, {2 * ranks, 3})
  local function train(net, make, input)
    local opt = make(net)
    for _ = 1, 10 do
      opt:zero_grad()
      net(input):square():mean():backward()
      opt:step()
    end
    return plain(net.weight)
  end
  local expected = train(seeded(nn.Linear, 3, 2), function(net) return optim.SGD(net:parameters(), {lr = 0.1}) end, x)
  for _, given in ipairs {{config, {lr = 0.1}, n = 2}, {nil, {lr = 0.1}, n = 2}, {{lr = 0.1}, n = 1}} do
    local net = mh.replicate(seeded(nn.Linear, 3, 2), {mesh = mesh})
    local trained = train(net, function(one) return mh.build_optimizer(one, optim.SGD,
        table.unpack(given, 1, given.n)) end, x:narrow(0, 2 * mh.rank(), 2))
    testing.assert_close(trained, expected)
  end
  testing.assert_equal(lr_of(mh.build_optimizer(seeded(nn.Linear, 3, 2), optim.SGD, config)),
      lr_of(optim.SGD(nn.Linear(3, 2):parameters())))
end

function tests.test_N30_objects_are_no_options()
  local net, config = nn.Linear(3, 2), config_of(1, ranks)
  testing.assert_error(function() optim.SGD(net:parameters(), config) end,
      "SGD: the options are a plain table, got ComputeConfig")
  testing.assert_error(function() optim.SGD(net:parameters(), setmetatable({lr = 0.1}, {})) end,
      "SGD: the options are a plain table, got an object")
  testing.assert_error(function() mh.build_optimizer(net, optim.SGD, {lr = 0.1}, config) end,
      "build_optimizer: too many arguments")
  testing.assert_error(function() mh.build_optimizer(net, optim.SGD, config, config) end, "got ComputeConfig")
  refused(function() mh.build_optimizer(net, optim.SGD, config_of(1, 2 * ranks), {lr = 0.1}) end,
      "the ComputeConfig is of another run")
  testing.assert_equal(lr_of(optim.SGD(net:parameters(), mh.config {lr = 0.25})), 0.25)
end

function tests.test_N34_a_norm_is_not_negative()
  local net = mh.replicate(nn.Linear(3, 2):double(), {mesh = mesh})
  net(random(mh.rank() + 1, {2, 3})):sum():backward()
  local opt = optim.SGD(net:parameters(), {lr = 0.1})
  opt:sync_shard_grad()
  local before = plain(net.weight.grad):clone()
  for _, wrong in ipairs {-1, 0 / 0, -math.huge} do
    refused(function() opt:clip_gnorm(wrong) end, "max_norm is not a norm")
    refused(function() mh.clip_grad_norm(net:parameters(), wrong) end, "max_norm is not a norm")
  end
  testing.assert_equal(plain(net.weight.grad), before)
  opt:clip_gnorm(math.huge)
  testing.assert_equal(plain(net.weight.grad), before)
end

-- ---- Steps ----------------------------------------------------------------------------------------------------------

local Loss = nn.Module:extend("Loss")
function Loss:init() self.a = nn.Linear(3, 3) self.b = nn.Linear(3, 1) end
function Loss:stages() return {self.a, self.b} end
function Loss:loss(y) return y:square():mean() end
function Loss:forward(sample) return self:loss(self.b(self.a(sample))) end

function tests.test_N17_N20_steps_without_samples_or_losses()
  local x = random(2, {2, 3})
  for _, policy in ipairs {"tp", "data", "pp"} do
    local net = mh.parallelize(seeded(Loss), {sample = x}, policy,
      config_of(ranks, ranks, {use_end2end = true, pas_config = policy == "pp" and {pipeline_nmicros = 1} or nil}))
    refused(function() net:train_step {} end, "train_step: expected a list of samples")
    if policy ~= "pp" then  -- there the last stage alone sees it
      local wrong = {
        ["nil"] = function(loss) local _ = loss * 100 end, ["3"] = function() return 3 end,
        ["Tensor float64 [2]"] = function(loss) return mh.stack {loss, loss} end,
      }
      for what, scale in pairs(wrong) do
        refused(function() net:train_step({x}, nil, scale) end,
            "scale_fn returns the loss that backward starts from, one number\n  have  " .. what)
      end
    end
  end
end

-- ---- Plans ----------------------------------------------------------------------------------------------------------

local Mlp = nn.Module:extend("Mlp")
function Mlp:init() self.fc1 = nn.Linear(6, 8) self.fc2 = nn.Linear(8, 5) end
function Mlp:forward(x) return self.fc2(self.fc1(x):gelu()) end
local x = random(3, {4, 6})

local folders = 0
local function folder()
  folders = folders + 1
  local path = "build/plans_of_borders_" .. folders
  mh._files.on_first_rank(function() os.remove(path .. "/Mlp/plan.json") end)
  return path
end

function tests.test_N24_a_policy_with_other_upvalues_is_another_one()
  local path, calls = folder(), 0
  local function policy_of(dim, more)
    local function inner(shape) return shape[1] > more.least and dim or 0 end
    return function(_, config)
      calls = calls + 1  -- its own count is not a reason for another plan
      return {mesh = {{config.plan_ngpus}, {"tp"}}, parameter = {["fc1.weight"] = {mh.Shard(inner({8, 6}))}}}
    end
  end
  local function planned(policy, reuse)
    local net = mh.parallelize(seeded(Mlp), {x = x}, policy, config_of(ranks, ranks),
        {gen_savedir = path, reuse = reuse})
    testing.assert_close(plain(net(x)), plain(seeded(Mlp)(x)))
    return {net.parallel.planned, net.fc1.weight.placements[2].dim}
  end
  testing.assert_equal(planned(policy_of(0, {least = 1})), {true, 0})
  testing.assert_equal(planned(policy_of(0, {least = 1})), {false, 0})
  testing.assert_error(function() planned(policy_of(1, {least = 1})) end, "'policy.upvalues.inner.dim' was 0, is 1")
  testing.assert_error(function() planned(policy_of(0, {least = 9})) end,
      "'policy.upvalues.inner.more.least' was 1, is 9")
  testing.assert_equal(planned(policy_of(1, {least = 1}), "moo"), {true, 1})
  testing.assert_equal(planned(policy_of(1, {least = 1})), {false, 1})
  testing.assert_equal(calls, 2)
end

function tests.test_N25_plans_stay_in_their_folder()
  for _, name in ipairs {"../../x", "a/b", "..", "a\\b"} do
    refused(function()
      mh.parallelize(seeded(Mlp), {x = x}, "tp", config_of(ranks, ranks),
          {gen_savedir = folder(), instance_name = name})
    end, "instance_name is the name of a folder below gen_savedir")
  end
end

function tests.test_N09_inputs_name_a_dim_that_there_is()
  local function parallelize(dim)
    return mh.parallelize(seeded(Mlp), {x = x}, function(_, config)
      return {mesh = {{config.plan_ngpus}, {"tp"}}, inputs = {tp = dim}}
    end, config_of(ranks, ranks))
  end
  for _, dim in ipairs {9, 2, -1, 0.5} do
    refused(function() parallelize(dim) end,
        ("inputs cuts a dim that no argument of forward has\n  have  tp = %s, tensors of at most 2 dims"):format(dim))
  end
  testing.assert_close(plain(parallelize(1)(x)), plain(seeded(Mlp)(x)))
end

-- A parameter is kept along the same dim by whatever stores it.
function tests.test_N11_one_dim_of_storage()
  local shapes = {{3, 100, 2000}, {1, 2000}, {2, 600}, {1, 1, 1500}, {40, 30}, {4, 4}}
  for _, shape in ipairs(shapes) do
    local module = nn.Module:extend("Holder")()
    module.weight = nn.Parameter(mh.zeros(shape))
    mh.fully_shard(module, {mesh = mesh})
    local placement = module.weight.placements[1]
    local dim = placement:is_stored() and placement.dim or nil
    testing.assert_equal(mh._training.storage_dim(shape, {}, ranks), dim)
  end
  testing.assert_equal(mh._training.storage_dim({40, 30, 50}, {mh.Shard(0), "Replicate()"}, ranks), 2)
  testing.assert_equal(mh._training.storage_dim({40, 30, 50}, {"Shard(-1, {25, 25})", "Shard(0)"}, ranks), 1)
end

-- ---- Modules without values -----------------------------------------------------------------------------------------

local function layer_of(make, run)
  local One = nn.Module:extend("One")
  function One:init() self.inner = make() end
  function One:forward(given) return run and run(self.inner, given) or self.inner(given) end
  return One
end

local kLayers = {
  batch_norm = {layer_of(function() return nn.BatchNorm2d(6) end), {4, 6, 5, 5}},
  conv = {layer_of(function() return nn.Conv2d(6, 6, 3, {padding = 1}) end), {4, 6, 5, 5}},
  conv_transpose = {layer_of(function() return nn.ConvTranspose2d(6, 6, 3) end), {4, 6, 5, 5}},
  group_norm = {layer_of(function() return nn.GroupNorm(2, 6) end), {4, 6, 5, 5}},
  instance_norm = {layer_of(function() return nn.InstanceNorm2d(6, {affine = true}) end), {4, 6, 5, 5}},
  layer_norm = {layer_of(function() return nn.LayerNorm(6) end), {4, 6}},
  linear = {layer_of(function() return nn.Linear(6, 6) end), {4, 6}},
  spectrum = {layer_of(function() return nn.Linear(6, 6) end,
  function(inner, given) return mh.fft_irfft(mh.fft_rfft(inner(given))) end), {4, 6}},
  pooled = {layer_of(function() return nn.Sequential(nn.Conv2d(6, 6, 1), nn.MaxPool2d(2),
  nn.Upsample {scale_factor = 2}) end), {4, 6, 6, 6}},
  attention = {layer_of(function() return nn.MultiheadAttention(6, 2, {batch_first = true}) end, function(inner, given)
    return (inner(given, given, given))
  end), {2, 5, 6}},
}

function tests.test_N29_layers_of_all_kinds_without_values_until_they_are_loaded()
  for name, case in pairs(kLayers) do
    local given, path = random(4, case[2]), "build/plans_of_borders_weights_" .. name
    local source = seeded(case[1])
    mh.checkpoint.save(path, {model = source})
    local expected = source(given):detach()
    for _, policy in ipairs {"tp", "data", "autodist"} do
      local net = mh.parallelize(case[1], {given = mh.zeros(case[2], kF64)}, policy, config_of(ranks, ranks),
        {init_module_params = false, module_dtype = "float64"})()
      for _, parameter in ipairs(net:parameters()) do
        testing.assert_equal(plain(parameter):isnan():all():item(), true)
      end
      mh.checkpoint.load(path, {model = net})
      testing.assert_close(plain(net(given)), expected)
    end
  end
end

-- ---- Loads ----------------------------------------------------------------------------------------------------------

function tests.test_N42_parts_are_loaded_where_the_module_is_and_run()
  local function trained(net)
    local opt = optim.Adam(net:parameters(), {lr = 0.05})
    net(x):square():mean():backward()
    opt:step()
    return net, opt
  end
  local whole, whole_opt = trained(seeded(Mlp))
  local net, opt = trained(mh.parallelize_module(seeded(Mlp), mesh, {parameter = {["fc1.weight"] = {mh.Shard(0)}}}))
  local model, state = mh.deduped_state_dict(net, opt)
  local function go_on(one, optimizer)
    optimizer:zero_grad()
    one(x):square():mean():backward()
    optimizer:step()
    return plain(one(x))
  end
  local expected = go_on(whole, whole_opt)
  for _, device in ipairs {"cpu", false} do
    local again = mh.fully_shard(Mlp():double(), {mesh = mesh, min_numel = 1, input = false})
    local fresh = optim.Adam(again:parameters(), {lr = 0.05})
    mh.load_deduped_state_dict(again, model, fresh, state, device and {device = device} or nil)
    testing.assert_close(go_on(again, fresh), expected)
  end
  for _, device in ipairs {"nonsense", "meta", 3} do
    refused(function() mh.load_deduped_state_dict(net, model, opt, state, {device = device}) end,
        "tensors are loaded where the module has them")
    refused(function() mh.load_merged_state_dict(net, net:state_dict(), opt, opt:state_dict(), {device = device}) end,
      "tensors are loaded where the module has them")
  end
  testing.assert_error(function() mh.load_deduped_state_dict(net, model, opt, state, {devise = "cpu"}) end,
      "unknown option 'devise'; did you mean 'device'")
end

function tests.test_N38_N41_what_is_no_state_is_told()
  local net = mh.replicate(nn.Linear(3, 2), {mesh = mesh})
  local opt = optim.Adam(net:parameters())
  local calls = {
    ["expected an nn.Module"] = {{nil, {}}, {3, {}}, {mh.ones {2}, {}}, {{}, {}}},
    ["expected the model's state"] = {{net, nil}, {net, 3}, {net, mh.ones {2}}},
    ["expected an optimizer"] = {{net, net:state_dict(), 3, {}}, {net, net:state_dict(), {}, {}}},
    ["a state of an optimizer, and no optimizer"] = {{net, net:state_dict(), nil, opt:state_dict()}},
    ["expected the optimizer's state"] = {{net, net:state_dict(), opt}, {net, net:state_dict(), opt, 3},
  {net, net:state_dict(), opt, {}}}, }
  for field, value in pairs {rank = "x", ranks = 1.5, blocks = {}, entry = 3} do
    local part = mh.deduped_state_dict(net)
    if next(part.blocks) ~= nil or field ~= "blocks" then
      part[field] = value
      testing.assert_error(function() mh.merge_state_dicts{part} end, "expected what mh.deduped_state_dict gave")
    end
  end
  for text, list in pairs(calls) do
    for _, given in ipairs(list) do
      refused(function() mh.load_merged_state_dict(table.unpack(given, 1, 4)) end, "load_merged_state_dict: " .. text)
    end
  end
end

function tests.test_N26_a_module_that_was_only_planned_has_no_steps()
  local net = nn.Linear(3, 2)
  mh.parallelize(net, {x = mh.zeros{2, 3}}, "tp", config_of(ranks, ranks), {load_module = false})
  for _, name in ipairs {"parallel", "train_step", "infer_step"} do
    local message = testing.assert_error(function() return net[name] end,
      ("Linear: no field '%s', which mh.parallelize adds to a module that it divides"):format(name))
    local remedy = "fix   divide it: mh.parallelize(...) without load_module = false"
    testing.assert_equal(message:find(remedy, 1, true) ~= nil, true)
  end
end

function tests.test_D07_N44_wrong_arguments_are_named()
  local net = nn.Linear(3, 2)
  refused(function() mh.distribute_module(net) end, "distribute_module: expected a mesh")
  refused(function() mh.distribute_module(net, 3) end, "distribute_module: expected a mesh")
  for _, case in ipairs {
    {function() mh.distribute_module(net, mesh, 5) end, "distribute_module: partition is 5, expected a function"},
    {function() mh.distribute_module(net, mesh, nil, 5) end, "distribute_module: input is 5, expected a function"},
    {function() mh.parallelize_module(net, mesh, {}, 5) end, "parallelize_module: the options are a table, got 5"},
    {function() mh.parallelize_module(net, mesh, {}, {tp_mesh_dim = "dp"}) end, "tp_mesh_dim is 'dp', expected an int"},
    {function() mh.parallelize_module(net, mesh, {}, {factory = 5}) end, "factory is 5, expected true or placements"},
  } do
    testing.assert_error(case[1], case[2])
  end
  refused(function() mh.pipeline(nn.Sequential(net), {mesh = 3, micros = 1}) end, "pipeline: mesh is not a mesh but 3")
  refused(function() mh.data.DistributedSampler(true) end, "DistributedSampler: dataset is a number of samples")
  testing.assert_error(function() mh.op_trace(nil) end, "a function")
  testing.assert_equal(#mh.data.DistributedSampler({1, 2, 3, 4}), 4 // ranks)
end

return tests
