-- SPDX-License-Identifier: Apache-2.0
-- Activation functions as modules.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local base = require "moonhalo.nn.module"
local init = require "moonhalo.nn.init"
local layers = require "moonhalo.nn.layers"

local Module, show = base.Module, base.Module.show
local activation = {}

--- Class `name` that calls mh[op](x, option values in order).
local function define(name, op, entries, shown)
  local spec, fn = arguments.signature(name, entries or {}), mh[op]
  local class = Module:extend(name)
  function class:init(...)
    self:_keep(spec, arguments.read(spec, ...))
  end
  function class:forward(x)
    local values = {}
    for i, key in ipairs(spec.names) do values[i] = self[key] end
    return fn(x, table.unpack(values, 1, #spec.names))
  end
  function class:extra_repr()
    local parts = {}
    for i, key in ipairs(shown or spec.names) do parts[i] = key .. "=" .. show(self[key]) end
    return table.concat(parts, ", ")
  end
  activation[name] = class
end

--- mh.nn.ReLU() -> Module
--- mh.nn.ReLU6() -> Module
--- mh.nn.SELU() -> Module
--- mh.nn.SiLU() -> Module
--- mh.nn.Mish() -> Module
--- mh.nn.Tanh() -> Module
--- mh.nn.Sigmoid() -> Module
--- mh.nn.Hardswish() -> Module
--- mh.nn.Hardsigmoid() -> Module
--- mh.nn.LogSigmoid() -> Module
---   Activation functions of single elements without options, with the formulas of torch.nn.
---   returns     Module      a module without parameters; its result has the shape and the cut of its input
---   collective  no
---   example
---     nn.ReLU()(mh.tensor{-1.0, 2.0}):tolist()    --> {0.0, 2.0}

for name, op in pairs {ReLU = "relu", ReLU6 = "relu6", SELU = "selu", SiLU = "silu", Mish = "mish", Tanh = "tanh",
  Sigmoid = "sigmoid", Hardswish = "hardswish", Hardsigmoid = "hardsigmoid", LogSigmoid = "log_sigmoid"} do
  define(name, op)
end
--- mh.nn.ELU(alpha = 1.0) -> Module
--- mh.nn.CELU(alpha = 1.0) -> Module
---   Activation functions that approach -alpha for negative elements, with the formulas of torch.nn.
---   alpha       number      the bound below
---   returns     Module      a module without parameters; its result has the shape and the cut of its input
---   collective  no
---   example
---     nn.ELU()(mh.tensor{0.0, 2.0}):tolist()    --> {0.0, 2.0}

define("ELU", "elu", {{"alpha", 1.0}})
define("CELU", "celu", {{"alpha", 1.0}})
--- mh.nn.LeakyReLU(negative_slope = 0.01) -> Module
---   x where x is positive, negative_slope * x elsewhere.
---   negative_slope   number   the factor of negative elements
---   returns     Module      a module without parameters; its result has the shape and the cut of its input
---   collective  no
---   example
---     nn.LeakyReLU(0.5)(mh.tensor{-2.0, 2.0}):tolist()    --> {-1.0, 2.0}

define("LeakyReLU", "leaky_relu", {{"negative_slope", 0.01}})
--- mh.nn.Hardshrink(lambd = 0.5) -> Module
--- mh.nn.Softshrink(lambd = 0.5) -> Module
---   Zero within +- lambd; outside of it x, or for Softshrink x moved towards zero by lambd.
---   lambd       number      the bound
---   returns     Module      a module without parameters; its result has the shape and the cut of its input
---   collective  no
---   example
---     nn.Softshrink()(mh.tensor{0.25, 2.0}):tolist()    --> {0.0, 1.5}

define("Hardshrink", "hardshrink", {{"lambd", 0.5}})
define("Softshrink", "softshrink", {{"lambd", 0.5}})
--- mh.nn.Hardtanh(min_val = -1.0, max_val = 1.0) -> Module
---   x, limited to min_val and max_val.
---   min_val     number      the bound below
---   max_val     number      the bound above
---   returns     Module      a module without parameters; its result has the shape and the cut of its input
---   collective  no
---   example
---     nn.Hardtanh()(mh.tensor{-3.0, 0.5}):tolist()    --> {-1.0, 0.5}

define("Hardtanh", "hardtanh", {{"min_val", -1.0}, {"max_val", 1.0}})
--- mh.nn.Softplus(beta = 1.0, threshold = 20.0) -> Module
---   log(1 + exp(beta * x)) / beta, and x where beta * x is above threshold.
---   beta        number      how sharply it bends
---   threshold   number      where it becomes linear
---   returns     Module      a module without parameters; its result has the shape and the cut of its input
---   collective  no
---   example
---     nn.Softplus()(mh.tensor{30.0}):tolist()    --> {30.0}

define("Softplus", "softplus", {{"beta", 1.0}, {"threshold", 20.0}})
--- mh.nn.Threshold(threshold, value) -> Module
---   x where x is above threshold, value elsewhere.
---   threshold   number      the bound
---   value       number      what other elements become
---   returns     Module      a module without parameters; its result has the shape and the cut of its input
---   collective  no
---   example
---     nn.Threshold(1, 7)(mh.tensor{0.5, 2.0}):tolist()    --> {7.0, 2.0}

define("Threshold", "threshold", {"threshold", "value"})
--- mh.nn.GLU(dim = -1) -> Module
---   The first half of a dim times the sigmoid of the second half.
---   dim         integer     the dim that is halved
---   returns     Module      a module without parameters
---   collective  its calls: over the mesh of an input that is cut along the dim
---   example
---     nn.GLU()(mh.zeros{2, 6}).shape    --> {2, 3}

define("GLU", "glu", {{"dim", -1}})
--- mh.nn.Softmax(dim = -1) -> Module
--- mh.nn.LogSoftmax(dim = -1) -> Module
--- mh.nn.Softmin(dim = -1) -> Module
---   exp(x) divided by its sum along a dim, the logarithm of that, or the same of -x.
---   dim         integer     the dim along which results add up to 1
---   returns     Module      a module without parameters; its result has the shape and the cut of its input
---   collective  its calls: over the mesh of an input that is cut along the dim
---   example
---     nn.Softmax()(mh.zeros{1, 4}):tolist()    --> {{0.25, 0.25, 0.25, 0.25}}

define("Softmax", "softmax", {{"dim", -1}})
define("LogSoftmax", "log_softmax", {{"dim", -1}})
define("Softmin", "neg", {{"dim", -1}})
function activation.Softmin:forward(x) return mh.softmax(-x, self.dim) end
--- mh.nn.Softmax2d() -> Module
---   The softmax over the channels of fields [batch, channels, rows, columns] or [channels, rows, columns].
---   returns     Module      a module without parameters
---   collective  its calls: over the mesh of an input whose channels are cut
---   errors      ValueError: an input of another number of dims
---   example
---     nn.Softmax2d()(mh.zeros{1, 4, 1, 1}):flatten():tolist()    --> {0.25, 0.25, 0.25, 0.25}

define("Softmax2d", "softmax")
function activation.Softmax2d:forward(x)
  if arguments.tensor("Softmax2d", "the input", x).ndim ~= 3 and x.ndim ~= 4 then
    mh.fail("Softmax2d: the input has " .. x.ndim .. " dimensions, expected 3 or 4")
  end
  return mh.softmax(x, -3)
end
--- mh.nn.RReLU(lower = 1 / 8, upper = 1 / 3) -> Module
---   x where x is positive, elsewhere x times a slope, which is drawn between lower and upper for each element while
---   training, and their mean after eval().
---   lower       number      the smallest slope
---   upper       number      the largest slope
---   returns     Module      a module without parameters; its result has the shape and the cut of its input
---   collective  no
---   errors      ValueError: lower is above upper
---   example
---     nn.RReLU(0.25, 0.75):eval()(mh.tensor{-4.0, 2.0}):tolist()    --> {-2.0, 2.0}

define("RReLU", "rrelu", {{"lower", 1 / 8}, {"upper", 1 / 3}})
function activation.RReLU:forward(x) return mh.rrelu(x, self.lower, self.upper, self.training) end
--- mh.nn.Softsign() -> Module
--- mh.nn.Tanhshrink() -> Module
---   x / (1 + |x|), and x - tanh(x).
---   returns     Module      a module without parameters; its result has the shape and the cut of its input
---   collective  no
---   example
---     nn.Softsign()(mh.tensor{-1.0, 3.0}):tolist()    --> {-0.5, 0.75}

define("Softsign", "abs")
function activation.Softsign:forward(x) return x / (x:abs() + 1) end
define("Tanhshrink", "tanh")
function activation.Tanhshrink:forward(x) return x - x:tanh() end

local gelu = mh.gelu
--- mh.nn.GELU(approximate = "none") -> Module
---   x times the distribution function of the normal distribution at x.
---   approximate   "none"|"tanh"   exact, or by the formula with tanh
---   returns     Module      a module without parameters; its result has the shape and the cut of its input
---   collective  no
---   example
---     nn.GELU()(mh.zeros{2}):tolist()    --> {0.0, 0.0}

define("GELU", "gelu", {{"approximate", "none"}})
function activation.GELU:forward(x) return gelu(x, {approximate = self.approximate}) end
function activation.GELU:extra_repr() return "approximate='" .. self.approximate .. "'" end

--- mh.nn.PReLU(num_parameters = 1, init = 0.25, {device = nil, dtype = nil}) -> Module
---   x where x is positive, weight * x elsewhere, with trained weights.
---   num_parameters   integer   1, or a weight for each channel (dim 1)
---   init        number      initial value of the weights
---   device      string?     of the parameter
---   dtype       string?     of the parameter
---   returns     Module      parameter weight [num_parameters]
---   collective  no
---   example
---     nn.PReLU()(mh.tensor{-4.0, 2.0}):tolist()    --> {-1.0, 2.0}

local kPRelu = arguments.signature("PReLU",
  {{"num_parameters", 1}, {"init", 0.25}, arguments.optional "device", arguments.optional "dtype"})
activation.PReLU = Module:extend("PReLU")
function activation.PReLU:init(...)
  local values = arguments.read(kPRelu, ...)
  arguments.count("PReLU", "num_parameters", values.num_parameters, 1)
  self.weight = init.constant_(layers.new_parameter("PReLU", {values.num_parameters}, values),
    arguments.number("PReLU", "init", values.init))
end
function activation.PReLU:forward(x) return mh.prelu(x, self.weight) end
function activation.PReLU:extra_repr() return "num_parameters=" .. self.weight:numel() end

return activation
