-- SPDX-License-Identifier: Apache-2.0
-- Initial values in place, with the names and formulas of torch.nn.init. All draw from this rank's generator, whose
-- state is the same on every rank, so every rank count starts from the same weights.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local sorted_keys = require "moonhalo.internal.sorted_keys"

local fail = mh.fail
local init = {}

local function filled(tensor, fill)
  mh.no_grad(function() fill(tensor) end)
  return tensor
end

function init.uniform_(tensor, a, b) return filled(tensor, function(t) t:uniform_(a or 0, b or 1) end) end
function init.normal_(tensor, mean, std) return filled(tensor, function(t) t:normal_(mean or 0, std or 1) end) end
function init.constant_(tensor, value) return filled(tensor, function(t) t:fill_(value) end) end
function init.ones_(tensor) return init.constant_(tensor, 1) end
function init.zeros_(tensor) return init.constant_(tensor, 0) end

--- Normal numbers of which those outside [a, b] are drawn again, by the inverse distribution function.
function init.trunc_normal_(tensor, mean, std, a, b)
  mean, std, a, b = mean or 0, std or 1, a or -2, b or 2
  local function cdf(x) return 0.5 * (1 + mh.tensor(x / math.sqrt(2), {dtype = "float64"}):erf():item()) end
  local low, high = cdf((a - mean) / std), cdf((b - mean) / std)
  return filled(tensor, function(t)
    t:uniform_(2 * low - 1, 2 * high - 1):erfinv_():mul_(std * math.sqrt(2)):add_(mean):clamp_(a, b)
  end)
end

function init.eye_(tensor)
  if #tensor.shape ~= 2 then fail("eye_: a matrix is wanted, got " .. #tensor.shape .. " dimensions") end
  return filled(tensor, function(t)
    t:copy_(mh.eye(t.shape[1], t.shape[2], {dtype = t.dtype, device = t.device}))
  end)
end

--- Keeps as many input channels as possible the same through a convolution of 1 to 3 dimensions.
function init.dirac_(tensor, groups)
  local shape = tensor.shape
  groups = groups or 1
  if #shape < 3 or #shape > 5 then fail("dirac_: 3 to 5 dimensions are wanted, got " .. #shape) end
  if shape[1] % groups ~= 0 then fail("dirac_: " .. shape[1] .. " channels are not divisible by " .. groups .. " groups") end
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
  return filled(tensor, function(t) t:copy_(whole) end)
end

local kGain = {linear = 1, conv1d = 1, conv2d = 1, conv3d = 1, conv_transpose1d = 1, conv_transpose2d = 1,
  conv_transpose3d = 1, sigmoid = 1, tanh = 5 / 3, relu = math.sqrt(2), selu = 3 / 4}

--- The factor that keeps variances through a nonlinearity; `parameter` is leaky_relu's slope (default 0.01).
function init.calculate_gain(nonlinearity, parameter)
  if nonlinearity == "leaky_relu" then return math.sqrt(2 / (1 + (parameter or 0.01) ^ 2)) end
  local known = sorted_keys(kGain)
  known[#known + 1] = "leaky_relu"
  return kGain[arguments.choice("calculate_gain", "nonlinearity", nonlinearity, known)]
end

--- Inputs and outputs per element of a weight of shape [out, in, kernel...].
function init.fans(tensor)
  local shape = tensor.shape
  if #shape < 2 then fail("init: a weight of at least 2 dimensions is wanted, got " .. #shape) end
  local field = 1
  for d = 3, #shape do field = field * shape[d] end
  return shape[2] * field, shape[1] * field
end

function init.xavier_uniform_(tensor, gain)
  local fan_in, fan_out = init.fans(tensor)
  local bound = (gain or 1) * math.sqrt(6 / (fan_in + fan_out))
  return init.uniform_(tensor, -bound, bound)
end

function init.xavier_normal_(tensor, gain)
  local fan_in, fan_out = init.fans(tensor)
  return init.normal_(tensor, 0, (gain or 1) * math.sqrt(2 / (fan_in + fan_out)))
end

local kKaiming = arguments.signature("kaiming_", {"tensor", {"a", 0}, {"mode", "fan_in"}, {"nonlinearity", "leaky_relu"}})

local function kaiming_std(values)
  local fan_in, fan_out = init.fans(values.tensor)
  local mode = arguments.choice("kaiming_", "mode", values.mode, {"fan_in", "fan_out"})
  local fan = mode == "fan_in" and fan_in or fan_out
  return init.calculate_gain(values.nonlinearity, values.a) / math.sqrt(fan)
end

function init.kaiming_uniform_(...)
  local values = arguments.read(kKaiming, ...)
  local bound = math.sqrt(3) * kaiming_std(values)
  return init.uniform_(values.tensor, -bound, bound)
end

function init.kaiming_normal_(...)
  local values = arguments.read(kKaiming, ...)
  return init.normal_(values.tensor, 0, kaiming_std(values))
end

function init.orthogonal_(tensor, gain)
  local shape = tensor.shape
  if #shape < 2 then fail("orthogonal_: at least 2 dimensions are wanted, got " .. #shape) end
  local rows, columns = shape[1], 1
  for d = 2, #shape do columns = columns * shape[d] end
  return filled(tensor, function(t)
    local flat = mh.empty({rows, columns}, {dtype = t.dtype, device = t.device}):normal_()
    if rows < columns then flat = flat:t() end
    local q, r = mh.linalg_qr(flat)
    q = q * r:diagonal():sign()
    if rows < columns then q = q:t() end
    t:copy_(q:reshape(shape)):mul_(gain or 1)
  end)
end

return init
