-- SPDX-License-Identifier: Apache-2.0
-- Initial values in place, with the names and formulas of torch.nn.init. All draw from this rank's generator, whose
-- state is the same on every rank, so every rank count starts from the same weights.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local sorted_keys = require "moonhalo.internal.sorted_keys"

local fail = mh.fail
local init = {}

local function filled(op, tensor, fill)
  arguments.tensor(op, "the first argument", tensor)
  mh.no_grad(function() fill(tensor) end)
  return tensor
end

--- For values that are drawn, of which integers would keep nothing.
local function drawn(op, tensor, fill)
  arguments.tensor(op, "the first argument", tensor)
  if not (tensor:is_floating_point() or tensor:is_complex()) then
    fail(("%s: the first argument is %s, expected floating point numbers"):format(op, mh._describe(tensor)))
  end
  return filled(op, tensor, fill)
end

local function number(op, name, value, default)
  if value == nil then value = default end
  if type(value) ~= "number" then fail(("%s: %s is %s, expected a number"):format(op, name, mh._describe(value))) end
  return value
end

--- mh.nn.init.uniform_(tensor, a = 0, b = 1) -> Tensor
---   Fills a tensor with numbers of the uniform distribution from a to b, in place. Ranks draw the same numbers, and
---   blocks of a ShardTensor those of the whole tensor.
---   tensor      Tensor      floating point
---   a           number      the smallest number
---   b           number      the largest number
---   returns     Tensor      the tensor itself
---   collective  no
---   errors      TypeError: a tensor of integers
---   example
---     local x = nn.init.uniform_(mh.empty{100}, 2, 3)
---     x:min():item() >= 2 and x:max():item() <= 3    --> true
function init.uniform_(tensor, a, b)
  a, b = number("uniform_", "a", a, 0), number("uniform_", "b", b, 1)
  return drawn("uniform_", tensor, function(t) t:uniform_(a, b) end)
end
--- mh.nn.init.normal_(tensor, mean = 0, std = 1) -> Tensor
---   Fills a tensor with numbers of the normal distribution, in place.
---   tensor      Tensor      floating point
---   mean        number      their mean
---   std         number      their standard deviation
---   returns     Tensor      the tensor itself
---   collective  no
---   errors      TypeError: a tensor of integers
---   example
---     nn.init.normal_(mh.empty{3}, 5, 0):tolist()    --> {5.0, 5.0, 5.0}
function init.normal_(tensor, mean, std)
  mean, std = number("normal_", "mean", mean, 0), number("normal_", "std", std, 1)
  return drawn("normal_", tensor, function(t) t:normal_(mean, std) end)
end
--- mh.nn.init.constant_(tensor, value) -> Tensor
---   Fills a tensor with one number, in place.
---   tensor      Tensor      any dtype
---   value       number      what it is filled with
---   returns     Tensor      the tensor itself
---   collective  no
---   example
---     nn.init.constant_(mh.empty{2}, 3):tolist()    --> {3.0, 3.0}
function init.constant_(tensor, value)
  number("constant_", "value", value)
  return filled("constant_", tensor, function(t) t:fill_(value) end)
end
--- mh.nn.init.ones_(tensor) -> Tensor
--- mh.nn.init.zeros_(tensor) -> Tensor
---   Fills a tensor with ones, or zeros, in place.
---   tensor      Tensor      any dtype
---   returns     Tensor      the tensor itself
---   collective  no
---   example
---     nn.init.ones_(mh.empty{2}):tolist()    --> {1.0, 1.0}
function init.ones_(tensor) return filled("ones_", tensor, function(t) t:fill_(1) end) end
function init.zeros_(tensor) return filled("zeros_", tensor, function(t) t:fill_(0) end) end

--- mh.nn.init.trunc_normal_(tensor, mean = 0, std = 1, a = -2, b = 2) -> Tensor
---   Fills a tensor with numbers of the normal distribution within a and b, in place.
---   tensor      Tensor      floating point
---   mean        number      mean of the normal distribution
---   std         number      its standard deviation
---   a           number      the smallest number
---   b           number      the largest number
---   returns     Tensor      the tensor itself
---   collective  no
---   errors      TypeError: a tensor of integers
---   example
---     nn.init.trunc_normal_(mh.empty{100}):abs():max():item() <= 2    --> true
function init.trunc_normal_(tensor, mean, std, a, b)
  local op = "trunc_normal_"
  mean, std, a, b = number(op, "mean", mean, 0), number(op, "std", std, 1), number(op, "a", a, -2),
      number(op, "b", b, 2)
  local function cdf(x) return 0.5 * (1 + mh.tensor(x / math.sqrt(2), {dtype = "float64"}):erf():item()) end
  local low, high = cdf((a - mean) / std), cdf((b - mean) / std)
  return drawn(op, tensor, function(t)
    t:uniform_(2 * low - 1, 2 * high - 1):erfinv_():mul_(std * math.sqrt(2)):add_(mean):clamp_(a, b)
  end)
end

--- mh.nn.init.eye_(tensor) -> Tensor
---   Fills a matrix with ones on its diagonal and zeros elsewhere, in place.
---   tensor      Tensor      two dims
---   returns     Tensor      the tensor itself
---   collective  no
---   errors      ValueError: another number of dims
---   example
---     nn.init.eye_(mh.empty{2, 2}):tolist()    --> {{1.0, 0.0}, {0.0, 1.0}}
function init.eye_(tensor)
  if #arguments.tensor("eye_", "the first argument", tensor).shape ~= 2 then
    fail("eye_: a matrix is required, got " .. #tensor.shape .. " dimensions")
  end
  return filled("eye_", tensor, function(t)
    t:copy_(mh.eye(t.shape[1], t.shape[2], {dtype = t.dtype, device = t.device}))
  end)
end

--- mh.nn.init.dirac_(tensor, groups = 1) -> Tensor
---   Fills the weight of a convolution so that it keeps as many input channels as possible, in place.
---   tensor      Tensor      [out, in, kernel...], 1 to 3 dims of kernel
---   groups      integer     of the convolution
---   returns     Tensor      the tensor itself
---   collective  no
---   errors      ValueError: channels that groups does not divide
---   example
---     nn.init.dirac_(mh.empty{1, 1, 3}):tolist()    --> {{{0.0, 1.0, 0.0}}}
function init.dirac_(tensor, groups)
  local shape = arguments.tensor("dirac_", "the first argument", tensor).shape
  groups = arguments.count("dirac_", "groups", groups or 1, 1)
  if #shape < 3 or #shape > 5 then fail("dirac_: 3 to 5 dimensions are required, got " .. #shape) end
  if shape[1] % groups ~= 0 then
    fail("dirac_: " .. shape[1] .. " channels are not divisible by " .. groups .. " groups")
  end
  local per_group = shape[1] // groups
  -- Made whole and copied, as elements of a cut tensor cannot be written one by one.
  local whole = mh.zeros(shape, {dtype = tensor.dtype, device = tensor.device})
  for g = 0, groups - 1 do
    for c = 0, math.min(per_group, shape[2]) - 1 do
      local one = whole:select(0, g * per_group + c):select(0, c)
      for d = 3, #shape do one = one:select(0, shape[d] // 2) end
      one:fill_(1)
    end
  end
  return filled("dirac_", tensor, function(t) t:copy_(whole) end)
end

local kGain = {linear = 1, conv1d = 1, conv2d = 1, conv3d = 1, conv_transpose1d = 1, conv_transpose2d = 1,
  conv_transpose3d = 1, sigmoid = 1, tanh = 5 / 3, relu = math.sqrt(2), selu = 3 / 4}

--- mh.nn.init.calculate_gain(nonlinearity, parameter = nil) -> number
---   The factor of weights that keeps variances through a nonlinearity.
---   nonlinearity   string   "linear", "relu", "leaky_relu", "tanh", "sigmoid", "selu", "conv2d", ...
---   parameter   number?     slope of "leaky_relu"; nil for 0.01
---   returns     number      the factor
---   collective  no
---   errors      ValueError: an unknown name
---   example
---     ("%.4f"):format(nn.init.calculate_gain("relu"))    --> 1.4142
function init.calculate_gain(nonlinearity, parameter)
  if nonlinearity == "leaky_relu" then
    return math.sqrt(2 / (1 + number("calculate_gain", "parameter", parameter, 0.01) ^ 2))
  end
  local known = sorted_keys(kGain)
  known[#known + 1] = "leaky_relu"
  return kGain[arguments.choice("calculate_gain", "nonlinearity", nonlinearity, known)]
end

local function fans(op, tensor)
  local shape = arguments.tensor(op, "the first argument", tensor).shape
  if #shape < 2 then fail(op .. ": a weight of at least 2 dimensions is required, got " .. #shape) end
  local field = 1
  for d = 3, #shape do field = field * shape[d] end
  return shape[2] * field, shape[1] * field
end

--- mh.nn.init.fans(tensor) -> integer
---   How many inputs an element of the result of a weight has; a second result is how many outputs an input has.
---   tensor      Tensor      [out, in, kernel...]
---   returns     integer     in times the size of the kernel, then out times the size of the kernel
---   collective  no
---   errors      ValueError: fewer than two dims
---   example
---     nn.init.fans(mh.empty{8, 4, 3, 3})    --> 36  72
function init.fans(tensor) return fans("fans", tensor) end

--- mh.nn.init.xavier_uniform_(tensor, gain = 1) -> Tensor
--- mh.nn.init.xavier_normal_(tensor, gain = 1) -> Tensor
---   Fills a weight so that variances stay the same forward and backward (Glorot), in place, with uniform or normal
---   numbers.
---   tensor      Tensor      [out, in, kernel...], floating point
---   gain        number      factor for a nonlinearity (mh.nn.init.calculate_gain)
---   returns     Tensor      the tensor itself
---   collective  no
---   errors      ValueError: fewer than two dims
---   example
---     nn.init.xavier_uniform_(mh.empty{3, 3}):abs():max():item() <= 1    --> true
function init.xavier_uniform_(tensor, gain)
  local fan_in, fan_out = fans("xavier_uniform_", tensor)
  local bound = number("xavier_uniform_", "gain", gain, 1) * math.sqrt(6 / (fan_in + fan_out))
  return init.uniform_(tensor, -bound, bound)
end

function init.xavier_normal_(tensor, gain)
  local fan_in, fan_out = fans("xavier_normal_", tensor)
  return init.normal_(tensor, 0, number("xavier_normal_", "gain", gain, 1) * math.sqrt(2 / (fan_in + fan_out)))
end

--- mh.nn.init.kaiming_uniform_(tensor, {a = 0, mode = "fan_in", nonlinearity = "leaky_relu"}) -> Tensor
--- mh.nn.init.kaiming_normal_(tensor, {a = 0, mode = "fan_in", nonlinearity = "leaky_relu"}) -> Tensor
---   Fills a weight so that variances stay the same through rectifiers (He), in place, with uniform or normal numbers.
---   tensor      Tensor      [out, in, kernel...], floating point
---   a           number      slope of a leaky rectifier
---   mode        "fan_in"|"fan_out"   keeps variances forward, or backward
---   nonlinearity   string   as of mh.nn.init.calculate_gain
---   returns     Tensor      the tensor itself
---   collective  no
---   errors      ValueError: fewer than two dims, or an unknown name
---   example
---     nn.init.kaiming_uniform_(mh.empty{3, 6}):abs():max():item() <= 1    --> true
local function kaiming(name, fill)
  local signature = arguments.signature(name, {"tensor", {"a", 0}, {"mode", "fan_in"}, {"nonlinearity", "leaky_relu"}})
  init[name] = function(...)
    local values = arguments.read(signature, ...)
    local fan_in, fan_out = fans(name, values.tensor)
    number(name, "a", values.a)
    local mode = arguments.choice(name, "mode", values.mode, {"fan_in", "fan_out"})
    local fan = mode == "fan_in" and fan_in or fan_out
    return fill(values.tensor, init.calculate_gain(values.nonlinearity, values.a) / math.sqrt(fan))
  end
end

kaiming("kaiming_uniform_", function(tensor, std) return init.uniform_(tensor, -math.sqrt(3) * std,
    math.sqrt(3) * std) end)
kaiming("kaiming_normal_", function(tensor, std) return init.normal_(tensor, 0, std) end)

--- mh.nn.init.orthogonal_(tensor, gain = 1) -> Tensor
---   Fills a tensor, seen as a matrix of dim 0 and all others, with orthogonal rows or columns, in place.
---   tensor      Tensor      two dims or more, floating point
---   gain        number      factor of the elements
---   returns     Tensor      the tensor itself
---   collective  over the mesh of a cut tensor
---   errors      ValueError: fewer than two dims
---   example
---     local q = nn.init.orthogonal_(mh.empty({3, 3}, {dtype = "float64"}))
---     q:matmul(q.T):sub(mh.eye(3)):abs():max():item() < 1e-12    --> true
function init.orthogonal_(tensor, gain)
  local shape = arguments.tensor("orthogonal_", "the first argument", tensor).shape
  gain = number("orthogonal_", "gain", gain, 1)
  if #shape < 2 then fail("orthogonal_: at least 2 dimensions are required, got " .. #shape) end
  local rows, columns = shape[1], 1
  for d = 2, #shape do columns = columns * shape[d] end
  return drawn("orthogonal_", tensor, function(t)
    local flat = mh.empty({rows, columns}, {dtype = t.dtype, device = t.device}):normal_()
    if rows < columns then flat = flat:t() end
    local q, r = mh.linalg_qr(flat)
    q = q * r:diagonal():sign()
    if rows < columns then q = q:t() end
    t:copy_(q:reshape(shape)):mul_(gain)
  end)
end

--- mh.nn.init.sparse_(tensor, sparsity, std = 0.01) -> Tensor
---   Fills a matrix with numbers of the normal distribution, and sets a part of each column, drawn for each, to zero,
---   in place (Martens 2010).
---   tensor      Tensor      two dims, floating point
---   sparsity    number      0 to 1: the part of each column that is zero
---   std         number      standard deviation of the others
---   returns     Tensor      the tensor itself
---   collective  no
---   errors      ValueError: another number of dims
---   example
---     nn.init.sparse_(mh.empty{8, 3}, 0.25):eq(0):sum(0):tolist()    --> {2, 2, 2}
function init.sparse_(tensor, sparsity, std)
  local op = "sparse_"
  local shape = arguments.tensor(op, "the first argument", tensor).shape
  std = number(op, "std", std, 0.01)
  if not (number(op, "sparsity", sparsity) >= 0 and sparsity <= 1) then
    fail(("%s: sparsity is %s, expected 0 to 1"):format(op, sparsity))
  end
  if #shape ~= 2 then fail(op .. ": a matrix is required, got " .. #shape .. " dimensions") end
  return drawn(op, tensor, function(t)
    t:normal_(0, std)
    local zeros, kept = math.ceil(sparsity * shape[1]), {}
    for column = 1, shape[2] do
      kept[column] = mh.randperm(shape[1], {device = t.device}):argsort():ge(zeros)
    end
    if #kept > 0 then t:mul_(mh.stack(kept, 1):to(t.dtype)) end
  end)
end

return init
