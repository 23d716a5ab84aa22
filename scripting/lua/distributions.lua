-- SPDX-License-Identifier: Apache-2.0
-- mh.distributions: probability distributions with torch.distributions' names and formulas. Parameters may be cut, and
-- draws are those of the whole tensor on any number of ranks.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local strict = require "moonhalo.internal.strict"

local fail, optional = mh.fail, arguments.optional
local distributions = {}

--- Parameters as tensors of one dtype, broadcast together.
local function tensors_of(op, values, names)
  local like
  for _, name in ipairs(names) do
    local one = values[name]
    if mh.is_tensor(one) then
      if not one:is_floating_point() then
        fail(("%s: %s is %s, expected floating-point numbers"):format(op, name, mh._describe(one)))
      end
      like = like or one
    elseif type(one) ~= "number" then
      fail(("%s: %s is %s, expected a tensor or a number"):format(op, name, mh._describe(one)))
    end
  end
  local list = {}
  for i, name in ipairs(names) do
    local one = values[name]
    if not mh.is_tensor(one) then
      one = mh.full({}, one + 0.0, {dtype = like and like.dtype or mh.get_default_dtype(),
        device = like and like.device or mh.device()})
    end
    list[i] = one
  end
  return list
end

local function shape_of(...)
  local shapes = {}
  for i, one in ipairs {...} do shapes[i] = one.shape end
  return mh.broadcast_shapes(table.unpack(shapes))
end

local function joined(first, second)
  local all = {table.unpack(first)}
  for _, one in ipairs(second) do all[#all + 1] = one end
  return all
end

local function sample_shape(op, shape)
  local list = shape == nil and {} or shape
  local good = type(list) == "table" and not getmetatable(list)
  for _, one in ipairs(good and list or {}) do good = good and math.type(one) == "integer" and one >= 0 end
  if not good then fail(("%s: the shape is %s, expected a list of integers"):format(op, mh._describe(shape))) end
  return arguments.list(op, "a list of integers", list)
end

--- Refuses parameters that the formulas do not hold for; all ranks find the same.
local function check_all(op, what, good)
  if good:numel() == 0 or good:all():item() then return end
  if mh.backend() == "fake" then return end  -- other ranks' elements are zeros
  fail(("%s: %s"):format(op, what))
end

local Base = {}

--- Numbers of a standard distribution of the shape of the results, which are cut as `like` is.
local function drawn(self, op, shape, fill)
  local wanted = joined(sample_shape(op, shape), joined(self.batch_shape, self.event_shape))
  return mh.no_grad(function() return fill(self:_like():expand(wanted):clone()) end)
end

--- distribution:sample(shape = {}) -> Tensor
--- distribution:rsample(shape = {}) -> Tensor
---   Draws of the distribution, the same on any number of ranks. Gradients flow through those of rsample to the
---   parameters.
---   shape       {integer}   how many: the first dims of the result
---   returns     Tensor      shape, then the batch and event shape, cut as the parameters are
---   collective  no
---   errors      ValueError: rsample of Bernoulli and Categorical, whose draws have no derivative
---   example
---     mh.distributions.Normal(mh.zeros{3}, 1.0):sample{2}.shape    --> {2, 3}
function Base:sample(shape)
  return mh.no_grad(function() return self:rsample(shape) end)
end

--- distribution:entropy() -> Tensor
--- distribution:mean() -> Tensor
--- distribution:variance() -> Tensor
--- distribution:stddev() -> Tensor
--- distribution:covariance() -> Tensor
---   The entropy, mean, variance and standard deviation of each distribution of the batch; of MultivariateNormal also
---   the covariance matrix. Categorical has the entropy alone.
---   returns     Tensor      of the batch shape; mean and variance of vectors have the event shape, too
---   collective  over the mesh of cut parameters, where classes or vectors are cut
---   example
---     mh.distributions.Uniform(0.0, 6.0):variance():item()    --> 3.0

--- distribution:log_prob(value) -> Tensor
--- distribution:cdf(value) -> Tensor
--- distribution:icdf(value) -> Tensor
---   The logarithm of the density or of the probability of a value; of Normal and Uniform also the probability of what
---   is below, and its inverse.
---   value       Tensor      draws; probabilities for icdf
---   returns     Tensor      value's shape broadcast with the batch shape, without the event shape
---   collective  over the mesh of cut parameters, where classes or vectors are cut
---   errors      TypeError: not a tensor
---   example
---     mh.distributions.Normal(0.0, 1.0):cdf(mh.zeros{1}):item()    --> 0.5
function Base:stddev() return self:variance():sqrt() end

local kMethods = "batch_shape event_shape name _parameters"

local classes = {}

--- The distance from 1 to the next number.
local kEpsilon = {float64 = 2.0 ^ -52, float32 = 2.0 ^ -23, float16 = 2.0 ^ -10, bfloat16 = 2.0 ^ -7}

--- Logits of 0 and 1 are not finite: as torch does, the nearest probabilities are used there.
local function within_logits(probs)
  local epsilon = kEpsilon[probs.dtype]
  return probs:clamp(epsilon, 1 - epsilon)
end

--- A class `name` with the arguments `entries`; `init(self, values, op)` sets its fields.
local function define(name, entries, fields, init)
  local class = setmetatable({}, {__index = Base})
  local meta = strict.class {name = name, methods = class, fields = kMethods .. " " .. fields, word = "Distribution"}
  local spec = arguments.signature(name, entries)
  distributions[name] = mh._framed(function(...)
    local self = setmetatable({}, meta)
    self.name = name
    self.event_shape = {}
    init(self, arguments.read(spec, ...), name)
    return self
  end)
  classes[name] = class
  return class
end

local function check_value(self, op, value)
  arguments.tensor(op, "the value", value)
  return value
end

-- ---- Normal and uniform -------------------------------------------------------------------------------------------

local kHalfLog2Pi = 0.5 * math.log(2 * math.pi)

--- mh.distributions.Normal(loc, scale) -> Distribution
---   The normal distribution of each element.
---   loc         Tensor|number   mean
---   scale       Tensor|number   standard deviation, above 0
---   returns     Distribution   fields loc, scale, batch_shape; d:sample(shape), d:rsample(shape), through which
---     gradients flow, d:log_prob(x), d:cdf(x), d:icdf(p), d:entropy(), d:mean(), d:variance(), d:stddev()
---   collective  over the mesh of cut parameters, to check them
---   errors      ValueError: a scale that is not above 0
---   example
---     ("%.4f"):format(mh.distributions.Normal(0.0, 1.0):log_prob(mh.zeros{}):item())    --> -0.9189
local Normal = define("Normal", {"loc", "scale"}, "loc scale", function(self, v, op)
  self.loc, self.scale = table.unpack(tensors_of(op, v, {"loc", "scale"}))
  check_all(op, "scale has elements that are not above 0", self.scale:gt(0))
  self.batch_shape = shape_of(self.loc, self.scale)
end)
function Normal:_like() return self.loc + self.scale * 0 end
function Normal:rsample(shape)
  local noise = drawn(self, "Normal:sample", shape, function(x) return x:normal_() end)
  return self.loc + noise * self.scale
end
function Normal:log_prob(value)
  local z = (check_value(self, "Normal:log_prob", value) - self.loc) / self.scale
  return z * z * -0.5 - self.scale:log() - kHalfLog2Pi
end
function Normal:cdf(value)
  local z = (check_value(self, "Normal:cdf", value) - self.loc) / (self.scale * math.sqrt(2))
  return (z:erf() + 1) * 0.5
end
function Normal:icdf(value)
  return self.loc + self.scale * math.sqrt(2) * (check_value(self, "Normal:icdf", value) * 2 - 1):erfinv()
end
function Normal:entropy() return self.scale:log():expand(self.batch_shape) + (0.5 + kHalfLog2Pi) end
function Normal:mean() return self.loc:expand(self.batch_shape) end
function Normal:variance() return (self.scale * self.scale):expand(self.batch_shape) end

--- mh.distributions.Uniform(low, high) -> Distribution
---   The uniform distribution from low to high of each element.
---   low         Tensor|number   least value
---   high        Tensor|number   largest value
---   returns     Distribution   as of Normal, with fields low and high
---   collective  over the mesh of cut parameters, to check them
---   errors      ValueError: low is not below high
---   example
---     mh.distributions.Uniform(0.0, 2.0):mean():item()    --> 1.0
local Uniform = define("Uniform", {"low", "high"}, "low high", function(self, v, op)
  self.low, self.high = table.unpack(tensors_of(op, v, {"low", "high"}))
  check_all(op, "low is not below high everywhere", self.low:lt(self.high))
  self.batch_shape = shape_of(self.low, self.high)
end)
function Uniform:_like() return self.low + self.high * 0 end
function Uniform:rsample(shape)
  local noise = drawn(self, "Uniform:sample", shape, function(x) return x:uniform_() end)
  return self.low + noise * (self.high - self.low)
end
function Uniform:log_prob(value)
  check_value(self, "Uniform:log_prob", value)
  local within = mh.logical_and(value:ge(self.low), value:lt(self.high)):to(self.low.dtype)
  return within:log() - (self.high - self.low):log()
end
function Uniform:cdf(value)
  return ((check_value(self, "Uniform:cdf", value) - self.low) / (self.high - self.low)):clamp(0, 1)
end
function Uniform:icdf(value)
  return check_value(self, "Uniform:icdf", value) * (self.high - self.low) + self.low
end
function Uniform:entropy() return (self.high - self.low):log() end
function Uniform:mean() return (self.high + self.low) / 2 end
function Uniform:variance() return (self.high - self.low):square() / 12 end

-- ---- Bernoulli and categorical ------------------------------------------------------------------------------------

local function one_of(op, v)
  if (v.probs == nil) == (v.logits == nil) then fail(op .. ": give either probs or logits") end
  return v.probs ~= nil and "probs" or "logits"
end

--- mh.distributions.Bernoulli({probs = nil, logits = nil}) -> Distribution
---   1 with the probability probs, else 0.
---   probs       Tensor|number?   from 0 to 1; this or logits
---   logits      Tensor|number?   log(probs / (1 - probs))
---   returns     Distribution   fields probs, logits, batch_shape; d:sample(shape), d:log_prob(x), d:entropy(),
---     d:mean(), d:variance(), d:stddev()
---   collective  over the mesh of cut parameters, to check them
---   errors      ValueError: both or neither of probs and logits; a probability beyond 0 and 1
---   example
---     mh.distributions.Bernoulli{probs = 0.5}:variance():item()    --> 0.25
local Bernoulli = define("Bernoulli", {optional "probs", optional "logits"}, "probs logits", function(self, v, op)
  local given = one_of(op, v)
  local one = tensors_of(op, v, {given})[1]
  if given == "probs" then
    check_all(op, "a probability is not within 0 and 1", mh.logical_and(one:ge(0), one:le(1)))
    local inner = within_logits(one)
    self.probs, self.logits = one, inner:log() - (-inner):log1p()
  else
    self.probs, self.logits = one:sigmoid(), one
  end
  self.batch_shape = {table.unpack(one.shape)}
end)
function Bernoulli:_like() return self.probs end
function Bernoulli:rsample() fail("Bernoulli: draws have no derivative\n  fix   d:sample(shape)") end
function Bernoulli:sample(shape)
  return mh.no_grad(function()
    local noise = drawn(self, "Bernoulli:sample", shape, function(x) return x:uniform_() end)
    return noise:lt(self.probs):to(self.probs.dtype)
  end)
end
function Bernoulli:log_prob(value)
  check_value(self, "Bernoulli:log_prob", value)
  return value * mh.log_sigmoid(self.logits) + (1 - value) * mh.log_sigmoid(-self.logits)
end
function Bernoulli:entropy()
  return -(self.probs * mh.log_sigmoid(self.logits) + (1 - self.probs) * mh.log_sigmoid(-self.logits))
end
function Bernoulli:mean() return self.probs end
function Bernoulli:variance() return self.probs * (1 - self.probs) end

--- mh.distributions.Categorical({probs = nil, logits = nil}) -> Distribution
---   One of n classes, from 0, with probabilities along the last dim.
---   probs       Tensor?     [..., n], not below 0; divided by their sum. This or logits
---   logits      Tensor?     [..., n], logarithms of probabilities up to a constant
---   returns     Distribution   fields probs, logits (normalized), batch_shape; d:sample(shape), d:log_prob(x),
---     d:entropy()
---   collective  over the mesh of cut parameters, to check them
---   errors      ValueError: both or neither of probs and logits; a probability below 0
---   example
---     mh.distributions.Categorical{probs = mh.tensor{1.0, 0.0}}:sample{3}:tolist()    --> {0, 0, 0}
local Categorical = define("Categorical", {optional "probs", optional "logits"}, "probs logits", function(self, v, op)
  local given = one_of(op, v)
  local one = tensors_of(op, v, {given})[1]
  if one.ndim == 0 or one:size(-1) == 0 then
    fail(("%s: %s is %s, expected a last dim of classes"):format(op, given, mh._describe(one)))
  end
  if given == "probs" then
    check_all(op, "a probability is below 0, or all of a row are 0",
        mh.logical_and(one:ge(0), one:sum(-1, true):gt(0)))
    self.probs = one / one:sum(-1, true)
    self.logits = within_logits(self.probs):log()
  else
    self.logits = one - one:logsumexp({-1}, true)
    self.probs = self.logits:softmax(-1)
  end
  self.batch_shape = {table.unpack(one.shape, 1, one.ndim - 1)}
end)
function Categorical:rsample()
  fail("Categorical: draws have no derivative\n  fix   d:sample(shape), mh.gumbel_softmax")
end
function Categorical:sample(shape)
  return mh.no_grad(function()
    -- The first class whose cumulative probability is above a uniform number.
    local above = self.probs:cumsum(-1)
    local list = joined(sample_shape("Categorical:sample", shape), self.batch_shape)
    local noise = above:narrow(-1, 0, 1):squeeze(-1):expand(list):clone():uniform_():unsqueeze(-1)
    return above:le(noise):long():sum(-1):clamp_max(above:size(-1) - 1)
  end)
end
function Categorical:log_prob(value)
  local index = check_value(self, "Categorical:log_prob", value):long()
  local shape = shape_of(index, self.logits:select(-1, 0))
  local all = self.logits:expand(joined(shape, {self.logits:size(-1)}))
  return all:gather(-1, index:expand(shape):unsqueeze(-1)):squeeze(-1)
end
function Categorical:entropy() return -(self.probs * self.logits):sum(-1) end

-- ---- Multivariate normal ------------------------------------------------------------------------------------------

--- mh.distributions.MultivariateNormal(loc, {covariance_matrix = nil, scale_tril = nil}) -> Distribution
---   The normal distribution of vectors.
---   loc         Tensor      means [..., n]
---   covariance_matrix   Tensor?   [..., n, n], symmetric and positive definite; this or scale_tril
---   scale_tril   Tensor?     [..., n, n], its lower triangular root (mh.linalg_cholesky)
---   returns     Distribution   fields loc, scale_tril, batch_shape, event_shape; d:sample(shape), d:rsample(shape),
---     d:log_prob(x), d:entropy(), d:mean(), d:variance(), d:covariance()
---   collective  over the mesh of cut parameters; matrices are gathered where they are cut
---   errors      ValueError: both or neither of the matrices; shapes that do not fit
---   example
---     local d = mh.distributions.MultivariateNormal(mh.zeros{2}, {scale_tril = mh.eye(2)})
---     ("%.4f"):format(d:log_prob(mh.zeros{2}):item())    --> -1.8379
local Multi = define("MultivariateNormal", {"loc", optional "covariance_matrix", optional "scale_tril"},
    "loc scale_tril", function(self, v, op)
  if (v.covariance_matrix == nil) == (v.scale_tril == nil) then
    fail(op .. ": give either covariance_matrix or scale_tril")
  end
  local given = v.scale_tril ~= nil and "scale_tril" or "covariance_matrix"
  local loc, matrix = table.unpack(tensors_of(op, v, {"loc", given}))
  if loc.ndim < 1 or matrix.ndim < 2 or matrix:size(-1) ~= loc:size(-1) or matrix:size(-2) ~= loc:size(-1) then
    fail(("%s: loc of shape [%s] and %s of shape [%s] do not fit\n  fix   give [n] and [n, n]"):format(op,
        table.concat(loc.shape, ", "), given, table.concat(matrix.shape, ", ")))
  end
  self.loc, self.scale_tril = loc, given == "scale_tril" and matrix or mh.linalg_cholesky(matrix)
  self.event_shape = {loc:size(-1)}
  self.batch_shape = shape_of(loc:select(-1, 0), matrix:select(-1, 0):select(-1, 0))
end)
function Multi:_like() return self.loc + self.scale_tril:select(-1, 0) * 0 end
function Multi:rsample(shape)
  local noise = drawn(self, "MultivariateNormal:sample", shape, function(x) return x:normal_() end)
  return self.loc + self.scale_tril:matmul(noise:unsqueeze(-1)):squeeze(-1)
end
local function half_log_det(self) return self.scale_tril:diagonal(0, -2, -1):log():sum(-1) end
function Multi:log_prob(value)
  local d = check_value(self, "MultivariateNormal:log_prob", value) - self.loc
  local root = self.scale_tril:expand(joined({table.unpack(d.shape, 1, d.ndim - 1)}, {d:size(-1), d:size(-1)}))
  local z = mh.linalg_solve_triangular(root, d:unsqueeze(-1), {upper = false}):squeeze(-1)
  return (z * z):sum(-1) * -0.5 - half_log_det(self) - d:size(-1) * kHalfLog2Pi
end
function Multi:entropy()
  return (half_log_det(self) + self.event_shape[1] * (0.5 + kHalfLog2Pi)):expand(self.batch_shape)
end
function Multi:mean() return self.loc:expand(joined(self.batch_shape, self.event_shape)) end
function Multi:covariance() return self.scale_tril:matmul(self.scale_tril.mT) end
function Multi:variance()
  return self.scale_tril:square():sum(-1):expand(joined(self.batch_shape, self.event_shape))
end

-- ---- Divergence ---------------------------------------------------------------------------------------------------

local kDivergence = {}

function kDivergence.Normal(p, q)
  local ratio = (p.scale / q.scale):square()
  local shift = ((p.loc - q.loc) / q.scale):square()
  return (ratio + shift - 1 - ratio:log()) * 0.5
end

function kDivergence.Uniform(p, q)
  local value = ((q.high - q.low) / (p.high - p.low)):log()
  local beyond = mh.logical_or(q.low:gt(p.low), q.high:lt(p.high))
  return mh.where(beyond, mh.full({}, math.huge, {dtype = value.dtype, device = value.device}), value)
end

--- p * (log p - log q), which is 0 where p is 0 and infinite where q alone is.
local function part(p, log_p, q, log_q)
  local zero = mh.zeros({}, {dtype = p.dtype, device = p.device})
  local value = mh.where(p:eq(0), zero, p * (log_p - log_q))
  return mh.where(mh.logical_and(q:eq(0), p:ne(0)), zero + math.huge, value)
end

function kDivergence.Bernoulli(p, q)
  return part(p.probs, mh.log_sigmoid(p.logits), q.probs, mh.log_sigmoid(q.logits))
      + part(1 - p.probs, mh.log_sigmoid(-p.logits), 1 - q.probs, mh.log_sigmoid(-q.logits))
end

function kDivergence.Categorical(p, q) return part(p.probs, p.logits, q.probs, q.logits):sum(-1) end

function kDivergence.MultivariateNormal(p, q)
  local n = p.event_shape[1]
  if n ~= q.event_shape[1] then fail("kl_divergence: vectors of different sizes") end
  local batch = mh.broadcast_shapes(p.batch_shape, q.batch_shape)
  local root = q.scale_tril:expand(joined(batch, {n, n}))
  local ratio = mh.linalg_solve_triangular(root, p.scale_tril:expand(joined(batch, {n, n})), {upper = false})
  local shift = mh.linalg_solve_triangular(root, (q.loc - p.loc):expand(joined(batch, {n})):unsqueeze(-1),
      {upper = false})
  local squares = ratio:square():sum{dim = {-2, -1}} + shift:square():sum{dim = {-2, -1}}
  return half_log_det(q) - half_log_det(p) + (squares - n) * 0.5
end

--- mh.distributions.kl_divergence(p, q) -> Tensor
---   The Kullback-Leibler divergence of q from p: the mean over p of log p - log q.
---   p, q        Distribution   of one class
---   returns     Tensor      of the batch shape
---   collective  over the mesh of cut parameters, where the last dim is cut
---   errors      ValueError: distributions of different classes
---   example
---     local N = mh.distributions.Normal
---     mh.distributions.kl_divergence(N(1.0, 1.0), N(0.0, 1.0)):item()    --> 0.5
function distributions.kl_divergence(p, q)
  local op = "kl_divergence"
  local given = {p, q}
  for i, name in ipairs {"p", "q"} do
    if type(given[i]) ~= "table" or not kDivergence[strict.get(given[i], "name")] then
      fail(("%s: %s is %s, expected a distribution"):format(op, name, mh._describe(given[i])))
    end
  end
  if p.name ~= q.name then fail(("%s: there is no formula for %s and %s"):format(op, p.name, q.name)) end
  return kDivergence[p.name](p, q)
end
distributions.kl_divergence = mh._framed(distributions.kl_divergence)

return strict.table("distributions", distributions)
