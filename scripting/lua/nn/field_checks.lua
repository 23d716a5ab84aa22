-- SPDX-License-Identifier: Apache-2.0
-- Values that are refused as fields of modules.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"

local fail = mh.fail
local field_checks = {}

--- A list in a field whose modules would not be registered.
function field_checks.hidden_modules(self, name, value, is_module)
  if type(value) ~= "table" or getmetatable(value) then return end
  for _, one in ipairs(value) do
    if is_module(one) then
      fail(("%s: '%s' is a plain list that holds modules; their parameters would not be trained\n" ..
          "  fix   self.%s = nn.ModuleList(list)")
        :format(self:class_name(), name, name))
    end
  end
end

--- As in torch.nn, only a Parameter is trained. A leaf that requires a gradient is more often a forgotten Parameter
--- than anything else, and would be left out of parameters() and state_dict() without a word.
function field_checks.forgotten_parameter(self, name, value)
  if not (mh.is_tensor(value) and value.requires_grad and value.is_leaf) then return end
  fail(("%s: '%s' is a tensor that requires a gradient but no Parameter, so it would be neither trained nor saved\n" ..
      "  have  shape {%s}\n"
    .. "  fix   self.%s = mh.nn.Parameter(tensor), or hold it in a list, self.%s = {tensor}, if it is none of the " ..
        "module's weights"):format(
    self:class_name(), name, table.concat(value.shape, ", "), name, name))
end

--- Calls for those who assign to a method.
local kCalls = {train = "net:train(false), or net:eval()", eval = "net:eval(), or net:train()",
  requires_grad_ = "net:requires_grad_(false)"}

--- A value in the place of a method that all modules have would hide it.
function field_checks.hidden_method(self, name, value, Module)
  if value == nil or type(Module[name]) ~= "function" or arguments.is_callable(value) then return end
  fail(("%s: '%s' is a method, which %s would hide\n  fix   %s"):format(self:class_name(), name, mh._describe(value),
      kCalls[name] or ("call it, net:%s(), or choose another name"):format(name)))
end

return field_checks
