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

for name, op in pairs {ReLU = "relu", ReLU6 = "relu6", SELU = "selu", SiLU = "silu", Mish = "mish", Tanh = "tanh",
  Sigmoid = "sigmoid", Hardswish = "hardswish", Hardsigmoid = "hardsigmoid", LogSigmoid = "log_sigmoid"} do
  define(name, op)
end
define("ELU", "elu", {{"alpha", 1.0}})
define("CELU", "celu", {{"alpha", 1.0}})
define("LeakyReLU", "leaky_relu", {{"negative_slope", 0.01}})
define("Hardshrink", "hardshrink", {{"lambd", 0.5}})
define("Softshrink", "softshrink", {{"lambd", 0.5}})
define("Hardtanh", "hardtanh", {{"min_val", -1.0}, {"max_val", 1.0}})
define("Softplus", "softplus", {{"beta", 1.0}, {"threshold", 20.0}})
define("Threshold", "threshold", {"threshold", "value"})
define("GLU", "glu", {{"dim", -1}})
define("Softmax", "softmax", {{"dim", -1}})
define("LogSoftmax", "log_softmax", {{"dim", -1}})
define("Softmin", "neg", {{"dim", -1}})
function activation.Softmin:forward(x) return mh.softmax(-x, self.dim) end
define("Softsign", "abs")
function activation.Softsign:forward(x) return x / (x:abs() + 1) end
define("Tanhshrink", "tanh")
function activation.Tanhshrink:forward(x) return x - x:tanh() end

local gelu = mh.gelu
define("GELU", "gelu", {{"approximate", "none"}})
function activation.GELU:forward(x) return gelu(x, {approximate = self.approximate}) end
function activation.GELU:extra_repr() return "approximate='" .. self.approximate .. "'" end

local kPRelu = arguments.signature("PReLU",
  {{"num_parameters", 1}, {"init", 0.25}, arguments.optional "device", arguments.optional "dtype"})
activation.PReLU = Module:extend("PReLU")
function activation.PReLU:init(...)
  local values = arguments.read(kPRelu, ...)
  self.num_parameters = arguments.count("PReLU", "num_parameters", values.num_parameters, 1)
  self.weight = init.constant_(layers.new_parameter("PReLU", {values.num_parameters}, values),
    arguments.number("PReLU", "init", values.init))
end
function activation.PReLU:forward(x) return mh.prelu(x, self.weight) end
function activation.PReLU:extra_repr() return "num_parameters=" .. self.num_parameters end

return activation
