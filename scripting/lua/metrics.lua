-- SPDX-License-Identifier: Apache-2.0
-- mh.metrics: metrics of fields over a whole data set, added up batch by batch:
--
--     local rmse = mh.metrics.rmse{weights = mh.metrics.latitude_weights(lat), keep = {1}}
--     for batch in loader:batches() do rmse:add(net(batch.x), batch.y) end
--     print(rmse:value())
--
-- Sums are float64. Fields may be cut in any way, plain ones give the same values.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local errors = require "moonhalo.internal.field_errors"
local fields = require "moonhalo.internal.field_values"
local running = require "moonhalo.internal.running_metric"
local strict = require "moonhalo.internal.strict"

local fail = mh.fail
local optional = arguments.optional
local metrics = {}

--- Two fields of one shape, in float64.
local function pair_of(op, guess, truth)
  fields.real(op, "guess", guess)
  fields.real(op, "truth", truth)
  fields.same_shape(op, guess, truth, {"guess", "truth"})
  return guess:double(), truth:double()
end

--- The dims that are not kept.
local function others(self, op, x, from)
  local kept, dims = {}, {}
  for _, dim in ipairs(self.keep) do kept[fields.dim(op, "keep", dim, x.ndim)] = true end
  for d = from, x.ndim - 1 do
    if not kept[d] then dims[#dims + 1] = d end
  end
  return dims
end

local function define(name, entries, kind)
  entries[#entries + 1] = optional "keep"
  metrics[name] = mh._framed(running.maker(name, entries, kind))
end

-- ---- Means over everything ----------------------------------------------------------------------------------------

--- mh.metrics.rmse({weights = nil, mask = nil, keep = {}}) -> Metric
--- mh.metrics.mse({weights = nil, mask = nil, keep = {}}) -> Metric
--- mh.metrics.mae({weights = nil, mask = nil, keep = {}}) -> Metric
--- mh.metrics.bias({weights = nil, mask = nil, keep = {}}) -> Metric
---   The root of the mean of (guess - truth)^2 over all elements of all batches; that mean; the mean of |guess -
---   truth|; the mean of guess - truth. With latitude weights these are WeatherBench 2's (Rasp et al. 2024).
---   weights     Tensor?     broadcast to the fields, as mh.metrics.latitude_weights(lat)
---   mask        Tensor?     bool, broadcast to the fields: true where elements count; others may be NaN
---   keep        {integer}   dims that are not averaged: {1} gives a value for each channel
---   returns     Metric      m:add(guess, truth), m:value(), m:merge(other), m:reset(), m:state_dict(),
---     m:load_state_dict(s)
---   collective  value and state_dict, where fields are cut: one reduction
---   errors      ValueError: the shapes differ
---   example
---     local m = mh.metrics.rmse{}
---     m:add(mh.tensor{3.0, 0.0}, mh.tensor{0.0, 1.0})
---     m:value() ^ 2    --> 5.0
for _, name in ipairs {"mse", "rmse", "mae", "bias"} do
  define(name, {optional "weights", optional "mask"}, {
    sums = function(self, op, guess, truth)
      guess, truth = pair_of(op, guess, truth)
      fields.check_weights(op, guess, self)
      return errors[name].sums(guess, truth, others(self, op, guess, 0), self)
    end,
    finish = function(totals, self) return errors[name].of(totals, self) end,
  })
end

--- mh.metrics.max_error({mask = nil, keep = {}}) -> Metric
---   The largest |guess - truth| of all elements: PDEBench's maximum error.
---   mask        Tensor?     bool, broadcast to the fields: true where elements count; others may be NaN
---   keep        {integer}   dims that are not averaged: {1} gives a value for each channel
---   returns     Metric      m:add(guess, truth), m:value(), m:merge(other), m:reset(), m:state_dict(),
---     m:load_state_dict(s)
---   collective  value and state_dict, where fields are cut: one reduction
---   errors      ValueError: the shapes differ
---   example
---     local m = mh.metrics.max_error{}
---     m:add(mh.tensor{3.0, -5.0}, mh.tensor{1.0, 1.0})
---     m:value()    --> 6.0
define("max_error", {optional "mask"}, {
  by = "max",
  sums = function(self, op, guess, truth)
    guess, truth = pair_of(op, guess, truth)
    fields.check_weights(op, guess, self)
    local dims = others(self, op, guess, 0)
    local size = fields.masked(guess - truth, self.mask):abs()
    -- Largest values of one dim at least can be joined with those of other batches while they are still Partial.
    return {#dims > 0 and size:amax{dim = dims, keepdim = #dims == size.ndim} or size}
  end,
  finish = function(totals) return totals[1] end,
})

-- ---- Means of values of samples -----------------------------------------------------------------------------------

--- A metric that is the mean over samples (dim 0), and over channels unless kept, of a value that every sample has.
local function per_sample(name, entries, kind)
  entries[#entries + 1] = optional "dims"
  define(name, entries, {
    check = kind.check, inputs = kind.inputs,
    sums = function(self, op, guess, truth, extra)
      guess, truth = pair_of(op, guess, truth)
      local dims = self.dims and fields.dims(op, "dims", self.dims, guess.ndim) or nil
      for _, dim in ipairs(self.keep) do
        if dim == 0 then fail(op .. ": keep has dim 0, that of the samples, over which the mean is taken") end
      end
      dims = dims or others(self, op, guess, guess.ndim > 2 and 2 or 1)
      return kind.sums(self, op, guess, truth, dims, extra), dims
    end,
    fold = function(sums, self, over)
      local value = kind.of(sums, self)
      -- Dims of `value` are those that were not of space: the samples, then channels and others.
      local gone, space = {}, {}
      for _, dim in ipairs(over) do space[dim] = true end
      local kept, at = {}, 0
      for _, dim in ipairs(self.keep) do kept[dim] = true end
      for d = 0, value.ndim + #over - 1 do
        if not space[d] then
          if not kept[d] then gone[#gone + 1] = at end
          at = at + 1
        end
      end
      local count = 1
      for _, d in ipairs(gone) do count = count * value:size(d) end
      local total = #gone > 0 and value:sum{dim = gone} or value
      return {total, mh.full({}, count + 0.0, {dtype = "float64", device = total.device})}
    end,
    finish = function(totals, self)
      local mean = totals[1] / totals[2]
      return kind.finish and kind.finish(mean, self) or mean
    end,
  })
end

local function of_errors(name, entries, check)
  per_sample(name, entries, {
    check = check,
    sums = function(self, op, guess, truth, dims)
      fields.check_weights(op, guess, self)
      return errors[name].sums(guess, truth, dims, self)
    end,
    of = function(sums, self) return errors[name].of(sums, self) end,
  })
end

--- mh.metrics.relative_lp({p = 2, eps = 0.0, weights = nil, mask = nil, dims = {2, ...}, keep = {}}) -> Metric
---   The mean over samples (dim 0) of mh.losses.relative_lp.
---   p           number      of the norm, at least 1
---   eps         number      added to the divisor
---   weights     Tensor?     broadcast to the fields, as mh.metrics.latitude_weights(lat)
---   mask        Tensor?     bool, broadcast to the fields: true where elements count; others may be NaN
---   dims        {integer}   dims of space; all from 2 if left out
---   keep        {integer}   dims that are not averaged: {1} gives a value for each channel
---   returns     Metric      m:add(guess, truth), m:value(), m:merge(other), m:reset(), m:state_dict(),
---     m:load_state_dict(s)
---   collective  value and state_dict, where fields are cut: one reduction
---   errors      ValueError: the shapes differ
---   example
---     local m = mh.metrics.relative_lp{}
---     m:add(mh.tensor{{3.0, 0.0}, {1.0, 1.0}}, mh.tensor{{4.0, 0.0}, {2.0, 2.0}})
---     m:value()    --> 0.375
of_errors("relative_lp", {{"p", 2}, {"eps", 0.0}, optional "weights", optional "mask"}, function(self, op)
  if not (arguments.number(op, "p", self.p) >= 1) then
    fail(("%s: p is %s, expected a number of at least 1"):format(op, self.p))
  end
  arguments.number(op, "eps", self.eps)
end)
--- mh.metrics.nrmse({eps = 0.0, weights = nil, mask = nil, dims = {2, ...}, keep = {}}) -> Metric
--- mh.metrics.vrmse({eps = 1e-7, dims = {2, ...}, keep = {}}) -> Metric
---   The mean over samples (dim 0) of mh.losses.nrmse, or of mh.losses.vrmse.
---   eps         number      added to the divisor
---   weights     Tensor?     broadcast to the fields, as mh.metrics.latitude_weights(lat)
---   mask        Tensor?     bool, broadcast to the fields: true where elements count; others may be NaN
---   dims        {integer}   dims of space; all from 2 if left out
---   keep        {integer}   dims that are not averaged: {1} gives a value for each channel
---   returns     Metric      m:add(guess, truth), m:value(), m:merge(other), m:reset(), m:state_dict(),
---     m:load_state_dict(s)
---   collective  value and state_dict, where fields are cut: one reduction
---   errors      ValueError: the shapes differ
---   example
---     local m = mh.metrics.nrmse{}
---     m:add(mh.tensor{{3.0, 0.0}, {1.0, 1.0}}, mh.tensor{{4.0, 0.0}, {2.0, 2.0}})
---     m:value()    --> 0.375
local function check_eps(self, op) arguments.number(op, "eps", self.eps) end
--- mh.metrics.relative_h1({spacing = 1.0, order = 2, boundary = "circular", eps = 0.0, weights = nil, dims = {2, ...},
---     keep = {}}) -> Metric
---   The mean over samples (dim 0) of mh.losses.relative_h1.
---   spacing     number|{number}   distance of neighbours, one or one for each dim of space
---   order       integer     order of the finite differences, as of mh.stencil
---   boundary    string      what is beyond the domain, as of mh.stencil
---   eps         number      added to the divisor
---   weights     Tensor?     broadcast to the fields, as mh.metrics.latitude_weights(lat)
---   dims        {integer}   dims of space; all from 2 if left out
---   keep        {integer}   dims that are not averaged: {1} gives a value for each channel
---   returns     Metric      m:add(guess, truth), m:value(), m:merge(other), m:reset(), m:state_dict(),
---     m:load_state_dict(s)
---   collective  value and state_dict, where fields are cut: one reduction; add sends neighbouring rows
---   errors      ValueError: the shapes differ
---   example
---     local m, t = mh.metrics.relative_h1{}, mh.ones({1, 1, 4})
---     m:add(t * 1.5, t)
---     m:value()    --> 0.5
of_errors("relative_h1", {{"spacing", 1.0}, {"order", 2}, {"boundary", "circular"}, {"eps", 0.0}, optional "weights"},
  check_eps)
of_errors("nrmse", {{"eps", 0.0}, optional "weights", optional "mask"}, check_eps)
of_errors("vrmse", {{"eps", 1e-7}}, check_eps)

--- mh.metrics.acc({climatology = 0.0, weights = nil, mask = nil, dims = {2, ...}, keep = {}}) -> Metric
---   Anomaly correlation: the mean over samples of sum w f o / sqrt(sum w f^2 * sum w o^2), with the anomalies f =
---   guess - climatology and o = truth - climatology. WeatherBench 2's form (Rasp et al. 2024): anomalies are not
---   centred.
---   climatology   Tensor|number   broadcast to the fields; a third argument of add replaces it
---   weights     Tensor?     broadcast to the fields, as mh.metrics.latitude_weights(lat)
---   mask        Tensor?     bool, broadcast to the fields: true where elements count; others may be NaN
---   dims        {integer}   dims of space; all from 2 if left out
---   keep        {integer}   dims that are not averaged: {1} gives a value for each channel
---   returns     Metric      m:add(guess, truth), m:value(), m:merge(other), m:reset(), m:state_dict(),
---     m:load_state_dict(s)
---   collective  value and state_dict, where fields are cut: one reduction
---   errors      ValueError: the shapes differ
---   example
---     local m = mh.metrics.acc{climatology = 1.0}
---     m:add(mh.tensor{{2.0, 1.0}}, mh.tensor{{3.0, 1.0}})
---     m:value()    --> 1.0
per_sample("acc", {{"climatology", 0.0}, optional "weights", optional "mask"}, {
  inputs = 3,
  check = function(self, op)
    if not mh.is_tensor(self.climatology) then arguments.number(op, "climatology", self.climatology) end
  end,
  sums = function(self, op, guess, truth, dims, climatology)
    climatology = climatology or self.climatology
    if mh.is_tensor(climatology) then
      fields.broadcasts(op, "climatology", climatology, truth)
      climatology = fields.real(op, "climatology", climatology):double()
    end
    fields.check_weights(op, guess, self)
    local f, o = fields.masked(guess - climatology, self.mask), fields.masked(truth - climatology, self.mask)
    return {fields.sum(f * o, dims, self), fields.sum(f * f, dims, self), fields.sum(o * o, dims, self)}
  end,
  of = function(sums) return sums[1] / (sums[2] * sums[3]):sqrt() end,
})

--- mh.metrics.psnr({data_range = 1.0, mask = nil, dims = {2, ...}, keep = {}}) -> Metric
---   Peak signal-to-noise ratio in decibel: the mean over samples of 10 log10(data_range^2 / mean (guess - truth)^2).
---   data_range  number      largest possible value minus least one
---   mask        Tensor?     bool, broadcast to the fields: true where elements count; others may be NaN
---   dims        {integer}   dims of space; all from 2 if left out
---   keep        {integer}   dims that are not averaged: {1} gives a value for each channel
---   returns     Metric      m:add(guess, truth), m:value(), m:merge(other), m:reset(), m:state_dict(),
---     m:load_state_dict(s)
---   collective  value and state_dict, where fields are cut: one reduction
---   errors      ValueError: the shapes differ
---   example
---     local m = mh.metrics.psnr{}
---     m:add(mh.tensor{{0.1, 0.1}}:double(), mh.zeros({1, 2}, {dtype = "float64"}))
---     math.abs(m:value() - 20) < 1e-6    --> true
per_sample("psnr", {{"data_range", 1.0}, optional "mask"}, {
  check = function(self, op)
    if not (arguments.number(op, "data_range", self.data_range) > 0) then
      fail(("%s: data_range is %s, expected a number above 0"):format(op, self.data_range))
    end
  end,
  sums = function(self, op, guess, truth, dims)
    fields.check_weights(op, guess, {mask = self.mask})
    return errors.mse.sums(guess, truth, dims, {mask = self.mask})
  end,
  of = function(sums, self) return (self.data_range ^ 2 / (sums[1] / sums[2])):log10() * 10 end,
})

--- mh.metrics.ssim({data_range = 1.0, window = 11, sigma = 1.5, periodic = false, k1 = 0.01, k2 = 0.03,
---     keep = {}}) -> Metric
---   The mean structural similarity (Wang et al. 2004): the mean over samples, channels and windows.
---   data_range  number      largest possible value minus least one
---   window      integer     elements of the Gaussian window
---   sigma       number      standard deviation of the window, in elements
---   periodic    boolean     windows continue at the other end of the field; false keeps them inside
---   k1, k2      number      constants of the formula
---   keep        {integer}   dims that are not averaged: {1} gives a value for each channel
---   returns     Metric      m:add(guess, truth), m:value(), m:merge(other), m:reset(), m:state_dict(),
---     m:load_state_dict(s)
---   collective  value and state_dict, where fields are cut: one reduction; add sends neighbouring rows
---   errors      ValueError: the window is larger than the field
---   example
---     local m, x = mh.metrics.ssim{}, mh.ones({1, 1, 16, 16})
---     m:add(x, x)
---     m:value()    --> 1.0
define("ssim", {{"data_range", 1.0}, {"window", 11}, {"sigma", 1.5}, {"periodic", false}, {"k1", 0.01}, {"k2", 0.03}}, {
  sums = function(self, op, guess, truth)
    guess, truth = pair_of(op, guess, truth)
    local dims = errors.check_ssim(op, guess, self)
    local map = errors.ssim_field(guess, truth, dims, self)
    local over = others(self, op, map, 0)
    return {fields.sum(map, over, {}), fields.total(map, over, {})}
  end,
  finish = function(totals) return totals[1] / totals[2] end,
})

--- mh.metrics.conserved_rmse({weights = nil, dims = {2, ...}, keep = {}}) -> Metric
---   PDEBench's cRMSE: sqrt of the mean over samples of (sum guess - sum truth)^2 / n^2, how well a total is conserved.
---   With weights of cells, of their weighted means.
---   weights     Tensor?     broadcast to the fields, as mh.metrics.latitude_weights(lat)
---   dims        {integer}   dims of space; all from 2 if left out
---   keep        {integer}   dims that are not averaged: {1} gives a value for each channel
---   returns     Metric      m:add(guess, truth), m:value(), m:merge(other), m:reset(), m:state_dict(),
---     m:load_state_dict(s)
---   collective  value and state_dict, where fields are cut: one reduction
---   errors      ValueError: the shapes differ
---   example
---     local m = mh.metrics.conserved_rmse{}
---     m:add(mh.tensor{{3.0, 1.0}}, mh.tensor{{0.0, 2.0}})
---     m:value()    --> 1.0
per_sample("conserved_rmse", {optional "weights"}, {
  sums = function(self, op, guess, truth, dims)
    fields.check_weights(op, guess, {weights = self.weights})
    local weights = {weights = self.weights}
    return {fields.sum(guess - truth, dims, weights), fields.total(guess, dims, weights)}
  end,
  of = function(sums) return (sums[1] / sums[2]) ^ 2 end,
  finish = function(mean) return mean:sqrt() end,
})

--- mh.metrics.drift({energy = false, weights = nil, dims = {2, ...}, keep = {}}) -> Metric
---   The mean over samples of |total after - total before| / |total before|: of m:add(after, before). How well mass, or
---   with energy = true the energy of a velocity, is conserved.
---   energy      boolean     totals of squares in place of those of values
---   weights     Tensor?     broadcast to the fields, as mh.metrics.latitude_weights(lat)
---   dims        {integer}   dims of space; all from 2 if left out
---   keep        {integer}   dims that are not averaged: {1} gives a value for each channel
---   returns     Metric      m:add(guess, truth), m:value(), m:merge(other), m:reset(), m:state_dict(),
---     m:load_state_dict(s)
---   collective  value and state_dict, where fields are cut: one reduction
---   errors      ValueError: the shapes differ
---   example
---     local m = mh.metrics.drift{}
---     m:add(mh.tensor{{3.0, 2.0}}, mh.tensor{{2.0, 2.0}})
---     m:value()    --> 0.25
per_sample("drift", {{"energy", false}, optional "weights"}, {
  check = function(self, op) arguments.flag(op, "energy", self.energy) end,
  sums = function(self, op, after, before, dims)
    fields.check_weights(op, after, {weights = self.weights})
    if self.energy then after, before = after * after, before * before end
    local weights = {weights = self.weights}
    return {fields.sum(after - before, dims, weights), fields.sum(before, dims, weights)}
  end,
  of = function(sums) return (sums[1] / sums[2]):abs() end,
})

--- The number of faces of the domain that each element touches.
local function faces(x, dims)
  local total
  for _, d in ipairs(dims) do
    local shape, ends = {}, mh.zeros({x:size(d)}, {dtype = "float64", device = x.device})
    for i = 1, x.ndim do shape[i] = i == d + 1 and x:size(d) or 1 end
    ends[0] = ends[0] + 1
    ends[-1] = ends[-1] + 1
    total = total and total + ends:reshape(shape) or ends:reshape(shape)
  end
  return total
end

--- mh.metrics.boundary_rmse({dims = {2, ...}, keep = {}}) -> Metric
---   PDEBench's bRMSE: the mean over samples of the root of the mean of (guess - truth)^2 over the faces of the domain.
---   An element of several faces counts for each.
---   dims        {integer}   dims of space; all from 2 if left out
---   keep        {integer}   dims that are not averaged: {1} gives a value for each channel
---   returns     Metric      m:add(guess, truth), m:value(), m:merge(other), m:reset(), m:state_dict(),
---     m:load_state_dict(s)
---   collective  value and state_dict, where fields are cut: one reduction
---   errors      ValueError: the shapes differ
---   example
---     local m = mh.metrics.boundary_rmse{}
---     m:add(mh.tensor{{2.0, 9.0, 2.0}}, mh.tensor{{0.0, 0.0, 0.0}})
---     m:value()    --> 2.0
per_sample("boundary_rmse", {}, {
  sums = function(_, op, guess, truth, dims)
    local count, rows = 0, 1
    for _, d in ipairs(dims) do rows = rows * guess:size(d) end
    if rows == 0 then fail(op .. ": the field is empty") end
    for _, d in ipairs(dims) do count = count + 2 * rows // guess:size(d) end
    local error = guess - truth
    return {fields.sum(error * error * faces(guess, dims), dims, {}), count}
  end,
  of = function(sums) return (sums[1] / sums[2]):sqrt() end,
})

require("moonhalo.internal.ensemble_metrics")(define, others)
require("moonhalo.internal.event_metrics")(define, others, pair_of)
metrics.latitude_weights = mh._framed(fields.latitude_weights)

return strict.table("metrics", metrics)
