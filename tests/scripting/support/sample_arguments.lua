-- SPDX-License-Identifier: Apache-2.0
-- V15, N02: arguments that are the same for all samples, beside rows that are each rank's own. The oracle is the same
-- module on one plain tensor of all samples.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local refused = require "support.refused"
local runs = require "support.parallel_runs"
local nn = mh.nn
local plain, config_of = runs.plain, runs.config_of
local random, kF64 = runs.random, runs.kF64

local ranks, mesh = mh.world_size(), runs.row()
local tests = {}

-- A sum over the rows of the table: rows joined by mistake would count in it.
local Net = nn.Module:extend("Net")
function Net:init() self.fc = nn.Linear(6, 5) end
function Net:forward(x, options) return self.fc(x):matmul(options.basis:t()):logsumexp{dim = {1}} * options.scale end

local function make() mh.manual_seed(4) return Net():double() end

local kRows = ranks * (ranks + 1) // 2
local x, basis = random(1, {kRows, 6}), random(2, {7, 5})
local mine = x:narrow(0, mesh.rank * (mesh.rank + 1) // 2, mesh.rank + 1)
local scale = mh.tensor(3.0, kF64)

local kWays = {
  replicate = function(net) return mh.replicate(net, {mesh = mesh}) end,
  fully_shard = function(net) return mh.fully_shard(net, {mesh = mesh, min_numel = 1}) end,
  parallelize = function(net)
    return mh.parallelize(net, {x = mh.zeros({2, 6}, kF64), options = {basis = basis:clone(), scale = scale}}, "dp",
        config_of(1, ranks))
  end,
}

local function step(net, given, table_of_classes)
  local y = net(given, {basis = table_of_classes, scale = scale})
  y:square():mean():backward()
  return {y = plain(y), weight = plain(net.fc.weight.grad), basis = table_of_classes.grad
      and plain(table_of_classes.grad) or nil}
end

function tests.test_V15_N02_a_constant_is_one_tensor_for_all_samples()
  for _, needs_gradient in ipairs {false, true} do
    local function table_of_classes() return basis:clone():requires_grad_(needs_gradient) end
    local expected = step(make(), x, table_of_classes())
    for _, way in pairs(kWays) do
      local net = way(make())
      testing.assert_all_close(step(net, mine, mh.constant(table_of_classes())), expected)
      net:zero_grad()
      testing.assert_all_close(step(net, mine, mh.constant(table_of_classes())), expected)
    end
  end
end

-- A table of classes that is computed from plain parameters is the same everywhere, and so are their gradients.
function tests.test_N36_a_constant_may_be_computed()
  local function classes() return runs.seeded(nn.Linear, 5, 7).weight end
  local expected = step(make(), x, classes())
  local whole = classes()
  make()(x, {basis = whole * 2, scale = scale}):square():mean():backward()
  for _, way in pairs(kWays) do
    testing.assert_all_close(step(way(make()), mine, mh.constant(classes())), expected)
    local own = classes()
    way(make())(mine, {basis = mh.constant(own * 2), scale = scale}):square():mean():backward()
    testing.assert_close(own.grad, whole.grad)
  end
end

function tests.test_V15_N02_what_may_be_meant_otherwise_is_refused()
  local equal = random(3, {2, 6})
  local marks = "mh.constant(t) if it is one tensor for all samples, mh.local_batch(t) if its rows are this rank's " ..
      "own samples"
  for name, way in pairs(kWays) do
    local op = name == "parallelize" and "parallelize" or name
    refused(function() way(make())(mine, {basis = basis:clone(), scale = scale}) end, op
        .. ": Net: argument 2.basis has another number of rows")
    refused(function() way(make())(mine, {basis = basis:clone(), scale = scale}) end, marks)
    local same = ("%s: Net: argument 1 is the same on all %d ranks, and its rows would count as samples of " ..
        "each"):format(op, ranks)
    refused(function() way(make())(equal:clone(), {basis = mh.constant(basis), scale = scale}) end, same)
    refused(function() way(make())(equal:clone(), {basis = mh.constant(basis), scale = scale}) end, marks)
    refused(function() way(make())(mine, {basis = mh.constant(random(mesh.rank, {7, 5})), scale = scale}) end,
        "argument 2.basis, a constant")
    refused(function() way(make())(mine, {basis = mh.constant(basis), scale = scale + mesh.rank}) end,
        "argument 2.scale, a constant")
  end
  testing.assert_error(function() mh.constant(3) end, "constant: expected a tensor, got 3")
end

function tests.test_V15_rows_that_are_equal_by_chance_are_marked()
  local equal = random(3, {2, 6})
  local whole = make()
  local joined = {}
  for i = 1, ranks do joined[i] = equal end
  local expected = step(whole, mh.cat(joined), basis:clone())
  for _, way in pairs(kWays) do
    testing.assert_all_close(step(way(make()), mh.local_batch(equal:clone()), mh.constant(basis:clone())), expected)
  end
end

-- It costs a message at the first call with tensors at these places, and none later; ranks without rows decide nothing.
function tests.test_V15_arguments_are_looked_at_once()
  local net, classes = kWays.replicate(make()), mh.constant(basis:clone())
  local nothing = x:narrow(0, 0, 0)
  local function call(given) return net(given, {basis = classes, scale = scale}) end
  call(nothing:clone())
  refused(function() call(random(3, {2, 6})) end, "argument 1 is the same on all")
  call(mesh.rank == 0 and mine or nothing)
  local before = mh.comm_stats().messages
  call(random(3, {2, 6}))  -- equal batches later on are not reason to doubt
  local later = mh.comm_stats().messages - before
  call(mine)
  testing.assert_equal(mh.comm_stats().messages - before, 2 * later)
end

local Staged = nn.Module:extend("Staged")
function Staged:init() self.a = nn.Linear(6, 5) self.b = nn.Linear(5, 5) end
function Staged:stages() return {self.a, self.b} end
function Staged:loss(y, sample) return y:matmul(sample.basis:t()):logsumexp{dim = {1}}:square():sum() end
function Staged:forward(sample) return self:loss(self.b(self.a(sample[1])), sample) end

-- N17: micro-batches, of which some count nothing in one unit.
function tests.test_N17_constants_in_samples_of_units()
  if ranks < 4 then return end
  local function staged() mh.manual_seed(4) return Staged():double() end
  local units = ranks // 2
  local given = {random(5, {2 * units, 6}), random(6, {2 * units, 6})}
  for _, policy in ipairs {"pp", "data"} do
    local config = config_of(2, 2 * units, {use_end2end = true, pas_config = policy == "pp" and {pipeline_nmicros = 2}
        or {}})
    local function samples(u, classes)
      local list = {}
      for i, one in ipairs(given) do
        list[i] = {one:narrow(0, 2 * u, 2), basis = classes and mh.constant(basis:clone()) or basis:clone()}
      end
      return list
    end
    local function new() return mh.parallelize(staged(), {sample = {given[1], basis = basis}}, policy, config) end
    local net = new()
    local u = net.parallel.mesh:coordinate("unit")
    refused(function() net:train_step(samples(u, false)) end, "basis has another number of rows")

    net = new()
    local losses = net:train_step(samples(u, true), {false, u == 0})

    local whole = staged()
    for i, one in ipairs(given) do
      local loss = whole {i == 1 and one or one:narrow(0, 2, 2 * units - 2), basis = basis}
      loss:backward()
      testing.assert_close(plain(losses[i]), loss:detach())
    end
    for name, parameter in net:named_parameters() do
      testing.assert_close(plain(parameter.grad), whole:get_parameter(name).grad)
    end
  end
end

return tests
