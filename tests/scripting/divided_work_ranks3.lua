-- SPDX-License-Identifier: Apache-2.0
-- V10: products are divided over the ranks where their work counts: mesh:set_macs_per_byte,
-- ComputeConfig.macs_per_byte.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local compute_config = require "moonhalo.policy.compute_config"
local own_path = require "support.own_path"
local nn, S, R = mh.nn, mh.Shard, mh.Replicate

local ranks = mh.world_size()
local kF64 = {dtype = "float64"}
local tests = {}

local function mesh_of(per_byte)
  local mesh = mh.init_device_mesh(mh.device(), {ranks})
  if per_byte then mesh:set_macs_per_byte(per_byte) end
  return mesh
end

--- The result of fn() as a plain tensor, and the multiplications of this rank.
local function counted(fn)
  local result
  local macs = mh._call_graph.macs(function() result = fn() end)
  return result:full_tensor(), macs
end

function tests.test_V10_a_product_is_repeated_or_divided_by_what_work_costs()
  mh.manual_seed(3)
  local rows, wide, high = {5, 0, 3}, mh.randn({8, 60}, kF64), mh.randn({8, 70}, kF64)
  for _, case in ipairs {{nil, 8}, {math.huge, 8}, {1e9, 8}, {1e-3, rows[mh.rank() + 1]}} do
    local mesh = mesh_of(case[1])
    local a, b = mh.distribute_tensor(wide, mesh, {S(0, rows)}), mh.distribute_tensor(high, mesh, {S(0, rows)})

    local product, macs = counted(function() return a:t():mm(b) end)

    testing.assert_close(product, wide:t():mm(high))
    testing.assert_equal(macs, case[2] * 60 * 70)
  end
end

function tests.test_V10_slices_and_batched_products_count_work_too()
  mh.manual_seed(3)
  local mesh = mh.init_device_mesh(mh.device(), {1, ranks}, {"one", "all"})
  mesh:set_macs_per_byte(1e-3)
  local x, y = mh.randn({2, 9, 20}, kF64), mh.randn({2, 9, 30}, kF64)
  local a, b = mh.distribute_tensor(x, mesh["all"], {S(1)}), mh.distribute_tensor(y, mesh["all"], {S(1)})

  local product, macs = counted(function() return a:transpose(1, 2):bmm(b) end)

  testing.assert_close(product, x:transpose(1, 2):bmm(y))
  testing.assert_equal(macs, 2 * 20 * 30 * 9 // ranks)
end

local function net_of()
  mh.manual_seed(4)
  return nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 30)):double()
end

function tests.test_V10_few_samples_and_wide_layers_divide_their_gradients()
  -- Six rows against gradients of 40 x 50 numbers: by bytes alone every rank makes whole gradients.
  local x = mh.arange(240, kF64):mul(0.1):sin():reshape{6, 40}
  local whole = net_of()
  whole(x):square():mean():backward()
  local work = {}
  for i, per_byte in ipairs {math.huge, 1e-3} do
    local net = mh.parallelize(net_of(), {x = x}, "data", mh.ComputeConfig{plan_ngpus = ranks,
        macs_per_byte = per_byte})
    local _
    _, work[i] = counted(function()
      local loss = net(x):square():mean()
      loss:backward()
      mh.finish_grad_sync(net)
      return loss
    end)
    for j, parameter in ipairs(net:parameters()) do
      testing.assert_close(parameter.grad:full_tensor(), whole:parameters()[j].grad)
    end
  end
  -- Forward and the gradient of the hidden layer are divided anyway; those of the weights are 6 x (40 x 50 + 50 x 30).
  local weights = 6 * (40 * 50 + 50 * 30)
  testing.assert_equal({work[1] - work[2], work[2]}, {weights - weights // ranks, (2 * weights + 6 * 50 * 30) // ranks})
end

function tests.test_V10_what_is_wrong_is_refused_on_all_ranks()
  local mesh = mesh_of()
  testing.assert_error(function() mesh:set_macs_per_byte(0) end, "set_macs_per_byte: 0 multiplications for a byte")
  local held = mh.zeros({4}, {mesh = mesh, placements = {R()}})
  testing.assert_error(function() mesh:set_macs_per_byte(5) end,
      "set_macs_per_byte: tensors live on mesh(3: dim_0) already")
  mesh:set_macs_per_byte(math.huge)  -- as it is
  testing.assert_equal(held.shape, {4})
  testing.assert_error(function() mh.ComputeConfig{plan_ngpus = 1, macs_per_byte = -1} end,
    "macs_per_byte = -1, expected a number of multiplications above 0")
end

function tests.test_V10_autodist_counts_what_it_is_told()
  local function of(fields)
    fields.plan_ngpus = ranks
    return compute_config.macs_per_byte(mh.ComputeConfig(fields), "autodist")
  end
  testing.assert_equal({of{}, of{macs_per_byte = math.huge}, of{macs_per_byte = 3},
    of{pas_config = {macs_per_byte = 4}},
    of{macs_per_byte = 5, pas_config = {macs_per_byte = 5}}}, {10, math.huge, 3, 4, 5})
  testing.assert_error(function() of{macs_per_byte = 5, pas_config = {macs_per_byte = 6}} end,
    "ComputeConfig: two numbers of multiplications for a byte\n  have  macs_per_byte = 5, pas_config.macs_per_byte = 6")
  -- A plan for bytes alone is another than that of ten multiplications.
  testing.assert_equal({compute_config.facts(mh.ComputeConfig{plan_ngpus = 1}, "autodist").macs_per_byte,
    compute_config.facts(mh.ComputeConfig{plan_ngpus = 1, macs_per_byte = math.huge}, "autodist").macs_per_byte,
    compute_config.facts(mh.ComputeConfig{plan_ngpus = 1, macs_per_byte = math.huge}, "data").macs_per_byte},
      {nil, "bytes alone", nil})
end

function tests.test_N24_plans_from_before_work_counted_still_fit()
  local folder = own_path("divided_work")
  mh._files.on_first_rank(function() mh._checkpoint_files.discard("test", folder) end)
  local function divided(per_byte)
    local config = mh.ComputeConfig{plan_ngpus = ranks, macs_per_byte = per_byte}
    return mh.parallelize(net_of(), {x = mh.zeros({6, 40}, kF64)}, "data", config, {gen_savedir = folder})
  end
  divided()
  local saved = mh._files.on_first_rank(function() return mh.json.encode(
      mh.json.load(folder .. "/Sequential/plan.json").key.config) end)
  testing.assert_equal(mh.json.decode(saved).macs_per_byte, nil)
  testing.assert_equal(divided().parallel.planned, false)
  testing.assert_error(function() divided(7) end, "'config.macs_per_byte' was nothing, is 7")
  mh._files.on_first_rank(function() mh._checkpoint_files.discard("test", folder) end)
end

return tests
