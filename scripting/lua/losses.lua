-- SPDX-License-Identifier: Apache-2.0
-- mh.losses: losses of fields {batch, channel, space ...}, differentiable, and exact on blocks of any sizes.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local errors = require "moonhalo.internal.field_errors"
local fields = require "moonhalo.internal.field_values"
local strict = require "moonhalo.internal.strict"

local optional = arguments.optional
local losses = {}
local define = arguments.definer(losses, {input = true, target = true})

local function check_pair(op, v)
  fields.real(op, "input", v.input)
  fields.real(op, "target", v.target)
  fields.same_shape(op, v.input, v.target, {"input", "target"})
end

local function reduced(op, value, reduction)
  arguments.choice(op, "reduction", reduction, {"mean", "sum", "none"})
  if reduction == "none" then return value end
  return reduction == "mean" and value:mean() or value:sum()
end

--- mh.losses.mse(input, target, {weights = nil, mask = nil}) -> Tensor
--- mh.losses.mae(input, target, {weights = nil, mask = nil}) -> Tensor
---   Mean of (input - target)^2, or of |input - target|, over all elements that count, weighted.
---   input, target  Tensor   real, one shape
---   weights        Tensor?  broadcast to it, as mh.metrics.latitude_weights
---   mask           Tensor?  bool, broadcast to it: true where elements count. Others may be NaN
---   returns        Tensor   a number
---   collective     no; Partial where a dim is cut
---   errors         ValueError: shapes differ, weights do not broadcast
---   example
---     mh.losses.mse(mh.tensor{1.0, 3.0}, mh.tensor{0.0, 0.0}, {weights = mh.tensor{3.0, 1.0}}):item()    --> 3.0
for _, name in ipairs {"mse", "mae"} do
  define(name, {"input", "target", optional "weights", optional "mask"}, function(v, op)
    check_pair(op, v)
    fields.check_weights(op, v.input, v)
    local all = {}
    for d = 0, v.input.ndim - 1 do all[d + 1] = d end
    return errors[name].of(errors[name].sums(v.input, v.target, all, v), v)
  end)
end

--- Losses that are one number of every sample and channel.
local function per_sample(name, entries, check)
  local all = {"input", "target"}
  for _, entry in ipairs(entries) do all[#all + 1] = entry end
  all[#all + 1], all[#all + 2] = optional "dims", {"reduction", "mean"}
  define(name, all, function(v, op)
    check_pair(op, v)
    local dims = fields.space(op, v.input, v.dims)
    if check then check(op, v) end
    return reduced(op, errors[name].of(errors[name].sums(v.input, v.target, dims, v), v), v.reduction)
  end)
end

--- mh.losses.relative_lp(input, target, {p = 2, weights = nil, mask = nil, eps = 0.0, dims = {2, ...},
---     reduction = "mean"}) -> Tensor
---   ||input - target||_p / ||target||_p over the dims of space: Li et al. 2021, "Fourier neural operator".
---   input, target  Tensor     real, one shape
---   p              number     at least 1
---   weights, mask  Tensor?    broadcast to it
---   eps            number     added to the sum of |target|^p
---   dims           {integer}  dims of space (all from 2 if left out)
---   reduction      string     "mean", "sum" or "none" over samples and channels
---   returns        Tensor     a number, or with "none" the shape without dims
---   collective     where a dim of space is cut
---   errors         ValueError: shapes differ
---   example
---     mh.losses.relative_lp(mh.tensor{{{3.0, 1.0}}}, mh.tensor{{{3.0, 0.0}}}, {p = 1}):item()    --> 0.33333334326744
per_sample("relative_lp", {{"p", 2}, optional "weights", optional "mask", {"eps", 0.0}}, function(op, v)
  if not (arguments.number(op, "p", v.p) >= 1) then
    mh.fail(("%s: p is %s, expected a number of at least 1"):format(op, v.p))
  end
  arguments.number(op, "eps", v.eps)
  fields.check_weights(op, v.input, v)
end)

--- mh.losses.relative_h1(input, target, {spacing = 1.0, order = 2, boundary = "circular", eps = 0.0, weights = nil,
---     dims = {2, ...}, reduction = "mean"}) -> Tensor
---   The Sobolev norm sqrt(|d|^2 + |grad d|^2) of d = input - target, relative to that of the target. Gradients are
---   finite differences.
---   input, target  Tensor   real, of one shape [batch, channels, space...]
---   spacing     number|{number}   distance of neighbours, one or one for each dim of space
---   order       integer     order of the finite differences, as of mh.stencil
---   boundary    string      what is beyond the domain, as of mh.stencil
---   eps         number      added to the divisor
---   weights     Tensor?     broadcast to the fields, as mh.metrics.latitude_weights(lat)
---   dims        {integer}   dims of space; all from 2 if left out
---   reduction   "mean"|"sum"|"none"   over samples and channels
---   returns     Tensor      one number; with "none" a value for each sample and channel
---   collective  over the mesh of fields whose space is cut: neighbouring rows are sent
---   errors      ValueError: the shapes differ
---   example
---     local t = mh.ones({1, 1, 4})
---     mh.losses.relative_h1(t * 1.5, t):item()    --> 0.5
per_sample("relative_h1", {{"spacing", 1.0}, {"order", 2}, {"boundary", "circular"}, {"eps", 0.0}, optional "weights"},
    function(op, v)
  arguments.number(op, "eps", v.eps)
  fields.check_weights(op, v.input, v)
end)

--- mh.losses.nrmse(input, target, {eps = 0.0, weights = nil, mask = nil, dims = {2, ...},
---     reduction = "mean"}) -> Tensor
---   sqrt(mean (input - target)^2 / mean target^2) over the dims of space: PDEBench (Takamoto et al. 2022), and with
---   eps = 1e-7 the NRMSE of The Well (Ohana et al. 2024).
---   input, target  Tensor   real, of one shape [batch, channels, space...]
---   eps         number      added to the divisor
---   weights     Tensor?     broadcast to the fields, as mh.metrics.latitude_weights(lat)
---   mask        Tensor?     bool, broadcast to the fields: true where elements count; others may be NaN
---   dims        {integer}   dims of space; all from 2 if left out
---   reduction   "mean"|"sum"|"none"   over samples and channels
---   returns     Tensor      one number; with "none" a value for each sample and channel
---   collective  over the mesh of fields whose space is cut
---   errors      ValueError: the shapes differ
---   example
---     mh.losses.nrmse(mh.tensor{{{3.0, 0.0}}}, mh.tensor{{{4.0, 0.0}}}):item()    --> 0.25
per_sample("nrmse", {{"eps", 0.0}, optional "weights", optional "mask"}, function(op, v)
  arguments.number(op, "eps", v.eps)
  fields.check_weights(op, v.input, v)
end)

--- mh.losses.vrmse(input, target, {eps = 1e-7, dims = {2, ...}, reduction = "mean"}) -> Tensor
---   sqrt(mean (input - target)^2 / (var target + eps)) over the dims of space: The Well (Ohana et al. 2024). 1 is the
---   error of the target's mean. The variance is that of the sample, by n - 1, as in The Well's code.
---   input, target  Tensor   real, of one shape [batch, channels, space...]
---   eps         number      added to the divisor
---   dims        {integer}   dims of space; all from 2 if left out
---   reduction   "mean"|"sum"|"none"   over samples and channels
---   returns     Tensor      one number; with "none" a value for each sample and channel
---   collective  over the mesh of fields whose space is cut
---   errors      ValueError: the shapes differ
---   example
---     mh.losses.vrmse(mh.tensor{{{1.0, 1.0}}}, mh.tensor{{{0.0, 2.0}}}, {eps = 0.0}):item()    --> 0.70710676908493
per_sample("vrmse", {{"eps", 1e-7}}, function(op, v) arguments.number(op, "eps", v.eps) end)

--- mh.losses.crps(input, target, {ensemble = 1, fair = true, weights = nil, mask = nil}) -> Tensor
---   The continuous ranked probability score: mean |x_i - y| - sum_ij |x_i - x_j| / (2 m (m - 1)), the mean over all
---   points of Ferro's fair score (2014); with fair = false m^2 in place of m (m - 1).
---   input       Tensor      [batch, members, ...]
---   target      Tensor      the shape of input without the dim of members
---   ensemble    integer     the dim of members, which the truth does not have
---   fair        boolean     Ferro's fair score; false is the score of the ensemble as it is
---   weights     Tensor?     broadcast to the fields, as mh.metrics.latitude_weights(lat)
---   mask        Tensor?     bool, broadcast to the fields: true where elements count; others may be NaN
---   returns     Tensor      one number
---   collective  over the mesh of fields whose space is cut, or whose members are
---   errors      ValueError: shapes do not match; one member with fair = true
---   example
---     mh.losses.crps(mh.tensor{{0.0, 2.0}}, mh.tensor{1.0}, {fair = false}):item()    --> 0.5
define("crps", {"input", "target", {"ensemble", 1}, {"fair", true}, optional "weights", optional "mask"},
    function(v, op)
  errors.check_ensemble(op, v.input, v.target, v)
  arguments.flag(op, "fair", v.fair)
  fields.check_weights(op, v.target, v)
  local score = fields.masked(errors.crps_field(op, v.input, v.target, v), v.mask)
  local all = {}
  for d = 0, score.ndim - 1 do all[d + 1] = d end
  return fields.mean(score, all, v)
end)

--- mh.losses.ssim(input, target, {data_range = 1.0, window = 11, sigma = 1.5, periodic = false, k1 = 0.01,
---     k2 = 0.03}) -> Tensor
---   1 - the mean structural similarity (Wang et al. 2004) of fields of 1 to 3 dims of space.
---   input, target  Tensor   real, of one shape [batch, channels, space...]
---   data_range  number      largest possible value minus least one
---   window      integer     elements of the Gaussian window
---   sigma       number      standard deviation of the window, in elements
---   periodic    boolean     windows continue at the other end of the field; false keeps them inside
---   k1, k2      number      constants of the formula
---   returns     Tensor      one number
---   collective  over the mesh of fields whose space is cut: neighbouring rows are sent
---   errors      ValueError: the window is larger than the field
---   example
---     local x = mh.ones({1, 1, 16, 16})
---     mh.losses.ssim(x, x):item()    --> 0.0
define("ssim", {"input", "target", {"data_range", 1.0}, {"window", 11}, {"sigma", 1.5}, {"periodic", false},
  {"k1", 0.01}, {"k2", 0.03}}, function(v, op)
  check_pair(op, v)
  local dims = errors.check_ssim(op, v.input, v)
  return 1 - errors.ssim_field(v.input, v.target, dims, v):mean()
end)

--- mh.losses.log_spectral_distance(input, target, {dims = {2, ...}, shells = nil, eps = 1e-12}) -> Tensor
---   sqrt of the mean over shells 1, 2, ... of (10 log10(P_input / P_target))^2, with P the radial spectra
---   (mh.diagnostics.radial_spectrum) of every sample and channel, in decibel; the mean of these.
---   input, target  Tensor   real, of one shape [batch, channels, space...]
---   dims        {integer}   dims of space; all from 2 if left out
---   shells      integer?    number of shells of wave numbers
---   eps         number      added to both powers
---   returns     Tensor      one number
---   collective  over the mesh of fields whose space is cut
---   errors      ValueError: the shapes differ
---   example
---     local x = mh.randn({1, 1, 8, 8})
---     mh.losses.log_spectral_distance(x, x):item() < 1e-9    --> true
define("log_spectral_distance", {"input", "target", optional "dims", optional "shells", {"eps", 1e-12}},
    function(v, op)
  check_pair(op, v)
  arguments.number(op, "eps", v.eps)
  local dims = fields.space(op, v.input, v.dims)
  if v.shells ~= nil then arguments.count(op, "shells", v.shells, 2) end
  local function spectrum(x)
    local all = mh.diagnostics.radial_spectrum(x, {dims = dims, shells = v.shells})
    return (all:narrow(-1, 1, all:size(-1) - 1) + v.eps):log10()
  end
  local d = (spectrum(v.input) - spectrum(v.target)) * 10
  -- The gradient of a root is not finite at 0, where input and target are equal.
  return ((d * d):mean{dim = {-1}} + 1e-30):sqrt():mean()
end)

for name, fn in pairs(losses) do losses[name] = mh._framed(fn) end

return strict.table("losses", losses)
