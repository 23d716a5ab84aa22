-- SPDX-License-Identifier: Apache-2.0
-- Y17: metrics and losses of fields on blocks equal those of plain fields.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local kF64 = {dtype = "float64"}

local function draw(seed, shape)
  mh.manual_seed(seed)
  return mh.randn(shape, kF64)
end

local function weights() return mh.metrics.latitude_weights{-60, -35, -10, 10, 35, 60, 70, 80, 85} end

local function mask()
  local all = mh.ones({9, 12}, {dtype = "bool"})
  all["4, 3"] = false
  all["8, 11"] = false
  return all
end

--- name, make, what is added
local kMetrics = {
  {"mse", function(m) return m.mse{} end},
  {"rmse", function(m) return m.rmse{weights = weights(), keep = {1}} end},
  {"mae", function(m) return m.mae{mask = mask(), weights = weights()} end},
  {"bias", function(m) return m.bias{keep = {1}} end},
  {"max_error", function(m) return m.max_error{mask = mask()} end},
  {"max_error of channels", function(m) return m.max_error{keep = {1}} end},
  {"relative_lp", function(m) return m.relative_lp{p = 3, weights = weights()} end},
  {"relative_h1", function(m) return m.relative_h1{spacing = {0.5, 0.25}, keep = {1}} end},
  {"nrmse", function(m) return m.nrmse{keep = {1}, mask = mask()} end},
  {"vrmse", function(m) return m.vrmse{} end},
  {"acc", function(m) return m.acc{climatology = draw(9, {2, 9, 12}), weights = weights(), mask = mask()} end},
  {"psnr", function(m) return m.psnr{data_range = 4.0} end},
  {"ssim", function(m) return m.ssim{data_range = 4.0, window = 5, keep = {1}} end},
  {"ssim of a periodic field", function(m) return m.ssim{data_range = 4.0, window = 5, periodic = true} end},
  {"conserved_rmse", function(m) return m.conserved_rmse{weights = weights()} end},
  {"drift", function(m) return m.drift{keep = {1}} end},
  {"drift of energy", function(m) return m.drift{energy = true, weights = weights()} end},
  {"boundary_rmse", function(m) return m.boundary_rmse{} end},
  {"fss", function(m) return m.fss{threshold = 0.5, window = 5, weights = weights(), mask = mask()} end},
  {"fss of a periodic field", function(m) return m.fss{threshold = 0.2, periodic = true, keep = {1}} end},
  {"spectrum", function(m) return m.spectrum{} end},
}

local kEnsembles = {
  {"crps", function(m) return m.crps{weights = weights(), mask = mask()} end},
  {"crps, not fair", function(m) return m.crps{fair = false, keep = {1}} end},
  {"spread_skill", function(m) return m.spread_skill{weights = weights()} end},
  {"rank_histogram", function(m) return m.rank_histogram{mask = mask()} end},
  {"brier", function(m) return m.brier{threshold = 0.25} end},
}

local function values_of(metric)
  local value = metric:value()
  if type(value) ~= "table" then value = {value} end
  local list = {}
  for key, one in pairs(value) do
    list[key] = mh.is_tensor(one) and one or mh.tensor({one}, kF64)
    assert(not list[key]:is_shard_tensor(), "values are plain")
  end
  return list
end

local function same(name, a, b) testing.assert_all_close(values_of(a), values_of(b), {rtol = 1e-10, atol = 1e-12}) end

--- Messages of all kinds that `fn` sends, and how many reductions they are.
local function reductions(fn)
  local before = mh.comm_stats()
  fn()
  local after = mh.comm_stats()
  return after.calls - before.calls, after.by_kind.all_reduce.calls - before.by_kind.all_reduce.calls
end

--- Metrics that go on from a checkpoint have the values of those that saw all batches.
local function check_checkpoints(mesh, cut)
  local path = require("support.own_path")("metrics_" .. mesh.ndim)
  local function add(metric, step)
    metric:add(cut(draw(step, {3, 2, 9, 12}), 1), cut(draw(10 + step, {3, 2, 9, 12}), 1))
  end
  local whole, first, later = {}, {}, {}
  local makers = {function() return mh.metrics.vrmse{keep = {1}} end, function() return mh.metrics.acc{} end}
  for i, make in ipairs(makers) do
    whole[i], first[i], later[i] = make(), make(), make()
    add(whole[i], 1)
    add(whole[i], 2)
    add(first[i], 1)
  end
  mh.checkpoint.save(path, {errors = first[1], correlation = first[2]})
  mh.checkpoint.load(path, {errors = later[1], correlation = later[2]})
  for i = 1, 2 do
    add(later[i], 2)
    same("checkpoint", later[i], whole[i])
  end
end

--- Losses and diagnostics of two fields; some are of `ensemble` and a field.
local function differentiable(ensemble, field)
  local L, D = mh.losses, mh.diagnostics
  return {
    {function(x, y) return L.mse(x, y, {weights = weights(), mask = mask()}), L.mae(x, y, {weights = weights()}) end},
    {function(x, y) return L.relative_lp(x, y), L.relative_lp(x, y, {p = 3, reduction = "none"}) end},
    {function(x, y) return L.relative_h1(x, y, {spacing = 0.5, order = 4}), L.nrmse(x, y), L.vrmse(x, y) end},
    {function(x, y) return L.crps(x, y), L.crps(x, y, {fair = false, weights = weights()}) end, {ensemble, field}},
    {function(x, y) return L.ssim(x, y, {data_range = 4.0, window = 3}) end},
    {function(x, y) return L.log_spectral_distance(x, y) end},
    {function(x, y) return D.power_spectrum(x), D.power_spectrum(y, {dim = 2}), D.radial_spectrum(x) end},
    {function(x, y) return D.curl({x, y}, {dims = {3, 2}, spacing = {0.1, 0.2}}),
    D.divergence({x, y}, {dims = {3, 2}}) end},
    {function(x, y) return D.kinetic_energy({x, y}, {dims = {2, 3}, weights = weights()}),
      D.enstrophy({x, y}, {dims = {3, 2}}), D.total(x) end},
    {function(x, y)
      local degrees = {-80, -60, -40, -20, 0, 20, 40, 60, 80}
      return D.sphere_curl(x, y, degrees, {radius = 2.0}), D.sphere_divergence(x, y, degrees, {order = 4})
    end},
  }
end

--- Metrics of `list` on blocks, some of which are merged, saved and loaded, equal those of plain fields.
local function compare(cut, list, shape_of_guess)
  for _, case in ipairs(list) do
    local name, make = case[1], case[2]
    local plain, blocks, half = make(mh.metrics), make(mh.metrics), make(mh.metrics)
    for step = 1, 3 do
      local batch = step == 3 and 1 or 3
      local guess = draw(step, shape_of_guess(batch))
      local truth = draw(10 + step, {batch, 2, 9, 12}) + 0.5
      plain:add(guess, truth)
      local target = step == 2 and half or blocks
      target:add(cut(guess, step), cut(truth, step))
    end
    blocks:merge(half)
    local calls, sums = reductions(function() blocks:value() end)
    assert(sums == 1 and calls == 1, ("%s: %d collectives, %d of them reductions"):format(name, calls, sums))
    same(name, blocks, plain)
    calls = reductions(function() blocks:value() end)
    assert(calls == 0, name .. ": a second value sends nothing")
    local again = make(mh.metrics)
    again:load_state_dict(blocks:state_dict())
    again:add(cut(draw(21, shape_of_guess(2)), 1), cut(draw(22, {2, 2, 9, 12}), 1))
    plain:add(draw(21, shape_of_guess(2)), draw(22, {2, 2, 9, 12}))
    same(name, again, plain)
  end
end

--- Tests of fields {batch, channel, y, x} on `mesh`, of which `cut(field, step)` makes a ShardTensor.
return function(mesh, cut)
  local tests = {}

  function tests.test_Y17_metrics_on_blocks_equal_plain_ones()
    compare(cut, kMetrics, function(batch) return {batch, 2, 9, 12} end)
  end

  function tests.test_Y17_metrics_of_ensembles_on_blocks_equal_plain_ones()
    compare(cut, kEnsembles, function(batch) return {batch, 4, 2, 9, 12} end)
  end

  function tests.test_Y17_adding_sends_nothing()
    local guess, truth = cut(draw(1, {3, 2, 9, 12}), 1), cut(draw(2, {3, 2, 9, 12}), 1)
    for _, name in ipairs {"rmse", "mae", "nrmse", "vrmse", "acc", "psnr", "conserved_rmse", "max_error"} do
      local metric = mh.metrics[name]{}
      assert(reductions(function() metric:add(guess, truth) end) == 0, name .. ": add sent something")
      assert(not metric.pending[1][1].requires_grad, name .. ": the sums keep no graph")
    end
  end

  function tests.test_Y17_metrics_are_saved_with_checkpoints() check_checkpoints(mesh, cut) end

  function tests.test_Y17_batches_of_plain_fields_of_every_rank_are_added()
    local own = mh.metrics.rmse{keep = {1}}
    local all = mh.metrics.rmse{keep = {1}}
    local samples, all_samples = mh.metrics.vrmse{}, mh.metrics.vrmse{}
    local top, all_top = mh.metrics.max_error{}, mh.metrics.max_error{}
    for rank = 0, mh.world_size() - 1 do
      local guess, truth = draw(30 + rank, {rank + 1, 2, 4, 5}), draw(40 + rank, {rank + 1, 2, 4, 5})
      for _, one in ipairs {all, all_samples, all_top} do one:add(guess, truth) end
      if rank == mh.rank() then
        for _, one in ipairs {own, samples, top} do one:add(guess, truth) end
      end
    end
    local world = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"all"})
    for i, one in ipairs {own, samples, top} do
      local value, expected = one:value{over = world}, ({all, all_samples, all_top})[i]:value()
      if not mh.is_tensor(value) then value, expected = mh.tensor({value}, kF64), mh.tensor({expected}, kF64) end
      testing.assert_close(value, expected, {rtol = 1e-12, atol = 1e-14})
    end
  end

  function tests.test_Y17_losses_and_their_gradients_on_blocks()
    local a, b = draw(1, {2, 2, 9, 12}), draw(2, {2, 2, 9, 12})
    local ensemble = draw(3, {2, 4, 2, 9, 12})
    for _, case in ipairs(differentiable(ensemble, b)) do
      testing.same_as_plain(case[1], case[2] or {a, b}, {mesh = mesh, draws = 3, tolerance = 1e-9})
    end
  end

  return tests
end
