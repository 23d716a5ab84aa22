-- SPDX-License-Identifier: Apache-2.0
-- Errors of fields, the same formulas for losses (mh.losses) and running metrics (mh.metrics). Every function gives
-- sums over `dims` and what is to be done with them once they are complete: sums over a cut dim are Partial, and one
-- reduction at the end serves all.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local fields = require "moonhalo.internal.field_values"

local fail = mh.fail
local errors = {}

local function difference(guess, truth, options) return fields.masked(guess - truth, options.mask) end

-- ---- Each entry: sums(guess, truth, dims, options) -> list; of(sums, options) -> value ----------------------------

errors.mse = {
  sums = function(guess, truth, dims, options)
    local d = difference(guess, truth, options)
    return {fields.sum(d * d, dims, options), fields.total(d, dims, options)}
  end,
  of = function(s) return s[1] / s[2] end,
}

errors.mae = {
  sums = function(guess, truth, dims, options)
    local d = difference(guess, truth, options):abs()
    return {fields.sum(d, dims, options), fields.total(d, dims, options)}
  end,
  of = errors.mse.of,
}

errors.bias = {
  sums = function(guess, truth, dims, options)
    local d = difference(guess, truth, options)
    return {fields.sum(d, dims, options), fields.total(d, dims, options)}
  end,
  of = errors.mse.of,
}

errors.rmse = {sums = errors.mse.sums, of = function(s) return (s[1] / s[2]):sqrt() end}

errors.relative_lp = {
  sums = function(guess, truth, dims, options)
    local d, t = difference(guess, truth, options):abs(), fields.masked(truth, options.mask):abs()
    local p = options.p
    if p == 2 then
      d, t = d * d, t * t
    elseif p ~= 1 then
      d, t = d ^ p, t ^ p
    end
    return {fields.sum(d, dims, options), fields.sum(t, dims, options)}
  end,
  of = function(s, options)
    local ratio = s[1] / (s[2] + options.eps)
    if options.p == 1 then return ratio end
    return options.p == 2 and ratio:sqrt() or ratio ^ (1 / options.p)
  end,
}

--- The squared length of the gradient, by central differences.
local function gradient_square(x, dims, options)
  local spacing = arguments.tuple("relative_h1", "spacing", options.spacing, #dims)
  local total
  for i, d in ipairs(dims) do
    local slope = mh.stencil(x, {dim = d, derivative = 1, order = options.order, spacing = spacing[i],
      boundary = options.boundary})
    total = total and total + slope * slope or slope * slope
  end
  return total
end

errors.relative_h1 = {
  sums = function(guess, truth, dims, options)
    local d = guess - truth
    return {fields.sum(d * d + gradient_square(d, dims, options), dims, options),
      fields.sum(truth * truth + gradient_square(truth, dims, options), dims, options)}
  end,
  of = function(s, options) return (s[1] / (s[2] + options.eps)):sqrt() end,
}

errors.nrmse = {
  sums = function(guess, truth, dims, options)
    local d, t = difference(guess, truth, options), fields.masked(truth, options.mask)
    return {fields.sum(d * d, dims, options), fields.sum(t * t, dims, options), fields.total(d, dims, options)}
  end,
  of = function(s, options) return (s[1] / (s[2] + s[3] * options.eps)):sqrt() end,
}

--- The variance is that of the sample, by count - 1, as torch.std has it in the code of The Well.
errors.vrmse = {
  sums = function(guess, truth, dims, options)
    local d, t = guess - truth, truth:double()  -- squares of a pressure in float32 have no digits of its variance
    return {fields.sum(d * d, dims, {}), fields.sum(t * t, dims, {}), fields.sum(t, dims, {}),
      fields.total(d, dims, {})}
  end,
  of = function(s, options)
    local variance = ((s[2] - s[3] * s[3] / s[4]) / (s[4] - 1)):to(s[1].dtype)
    return (s[1] / s[4] / (variance + options.eps)):sqrt()
  end,
}

-- ---- Ensembles ----------------------------------------------------------------------------------------------------

--- CRPS at every point: mean |x_i - y| - sum_ij |x_i - x_j| / (2 m (m - 1)), or m^2 without `fair`. The sum over pairs
--- is that of sorted members x_(1) <= x_(2) ...: sum_ij |x_i - x_j| = 2 sum_i (2 i - m - 1) x_(i).
function errors.crps_field(op, ensemble, truth, options)
  local dim = fields.dim(op, "ensemble", options.ensemble, ensemble.ndim)
  local members = ensemble:size(dim)
  if options.fair and members < 2 then
    fail(op .. ": the ensemble has one member, the fair score needs two\n  fix   fair = false")
  end
  local error = (ensemble - truth:unsqueeze(dim)):abs():mean{dim = {dim}}
  local shape = {}
  for d = 1, ensemble.ndim do shape[d] = 1 end
  shape[dim + 1] = members
  local factors = (mh.arange(1, members + 1, {dtype = ensemble.dtype, device = ensemble.device}) * 2 - (members + 1))
      :reshape(shape)
  local sorted = ensemble:sort(dim)
  local pairs_of = (sorted * factors):sum{dim = {dim}}
  return error - pairs_of / (members * (options.fair and members - 1 or members))
end

--- The truth has the shape of the ensemble without the dim of the members.
function errors.check_ensemble(op, ensemble, truth, options)
  fields.real(op, "ensemble", ensemble)
  fields.real(op, "truth", truth)
  local dim = fields.dim(op, "ensemble", options.ensemble, ensemble.ndim)
  local shape = {table.unpack(ensemble.shape)}
  table.remove(shape, dim + 1)
  if table.concat(shape, ",") ~= table.concat(truth.shape, ",") then
    fail(("%s: the truth has shape %s, expected [%s]\n" ..
        "  have  an ensemble of shape %s, whose members are dim %d"):format(op, fields.shape_text(truth),
            table.concat(shape, ", "), fields.shape_text(ensemble), dim))
  end
  return dim
end

-- ---- Structural similarity ----------------------------------------------------------------------------------------

local function gaussian(window, sigma, like)
  local at = mh.arange(0, window, {dtype = like.dtype, device = like.device}) - (window - 1) / 2
  local weights = (-(at * at) / (2 * sigma * sigma)):exp()
  return weights / weights:sum()
end

--- Averages under a Gaussian window, one dim of space after the other.
local function blur(x, dims, options)
  local n, channels = #dims, x:size(1)
  local kernel = gaussian(options.window, options.sigma, x)
  local conv = mh["conv" .. n .. "d"]
  for i = 1, n do
    local shape, pads = {channels, 1}, {}
    for d = 1, n do
      shape[d + 2] = d == i and options.window or 1
      -- pad lists the last dim first
      local reach = d == i and (options.window - 1) // 2 or 0
      pads[2 * (n - d) + 1], pads[2 * (n - d) + 2] = reach, reach
    end
    local expanded = {table.unpack(shape)}
    shape[1] = 1
    if options.periodic then x = mh.functional.pad(x, pads, "circular") end
    x = conv(x, kernel:reshape(shape):expand(expanded):contiguous(), mh.none, {groups = channels})
  end
  return x
end

--- The map of SSIM: Wang et al. 2004, equation 13, with Gaussian windows that stay inside the field.
function errors.ssim_field(guess, truth, dims, options)
  local c1, c2 = (options.k1 * options.data_range) ^ 2, (options.k2 * options.data_range) ^ 2
  local ma, mb = blur(guess, dims, options), blur(truth, dims, options)
  local va = blur(guess * guess, dims, options) - ma * ma
  local vb = blur(truth * truth, dims, options) - mb * mb
  local cov = blur(guess * truth, dims, options) - ma * mb
  return (ma * mb * 2 + c1) * (cov * 2 + c2) / ((ma * ma + mb * mb + c1) * (va + vb + c2))
end

function errors.check_ssim(op, guess, options)
  for _, name in ipairs {"data_range", "sigma", "k1", "k2"} do
    if not (arguments.number(op, name, options[name]) > 0) then
      fail(("%s: %s is %s, expected a number above 0"):format(op, name, options[name]))
    end
  end
  fields.check_window(op, options)
  return fields.dims_of_windows(op, guess, options.window)
end

return errors
