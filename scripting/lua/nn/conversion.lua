-- SPDX-License-Identifier: Apache-2.0
-- Methods of modules that change dtype and device of all that is below, in place.

local mh = require "moonhalo"

local fail = mh.fail
local conversion = {}

local function converted(self, convert)
  mh.no_grad(function()
    for _, module in self:named_modules() do
      for _, parameter in module._parameters do
        local gradient = parameter.grad
        if gradient then parameter.grad = nil end
        parameter.data = convert(parameter:detach())
        if gradient then parameter.grad = convert(gradient) end
      end
      for name, buffer in module._buffers do module._buffers[name] = convert(buffer) end
    end
  end)
  return self
end

local function refuse_lost_halves(self, dtype)
  if dtype:find("^complex") then return end
  for _, tensors in ipairs {self:named_parameters(), self:named_buffers()} do
    for name, tensor in tensors do
      if tensor:is_complex() then
        fail(("%s: to: '%s' is %s, and %s would drop its imaginary parts\n" ..
            "  fix   :double(), :float(), :half() and :bfloat16() "
          .. "leave complex tensors as they are"):format(self:class_name(), name, tensor.dtype, dtype))
      end
    end
  end
end

--- net:to(...) -> Module
---   Moves parameters, their gradients and buffers in place: net:to("cuda"), net:to("float64"), net:to{device = "cpu",
---   dtype = "bfloat16"}. A dtype leaves integer tensors as they are.
---   returns     Module      net itself
---   collective  no
---   errors      ValueError: an unknown dtype or device; a real dtype for complex parameters
---   example
---     nn.Linear(2, 2):to("float64").weight.dtype    --> float64
function conversion:to(...)
  local device, dtype
  local function set(what, before, value)
    if before ~= nil and value ~= nil and before ~= value then
      fail(("%s: to: two %ss\n  have  '%s' and '%s'\n  fix   give one"):format(self:class_name(), what, before, value))
    end
    return value or before
  end
  for _, one in ipairs {...} do
    if type(one) == "table" and not getmetatable(one) then
      mh._check_place(self:class_name() .. ": to", one)
      device, dtype = set("device", device, one.device), set("dtype", dtype, one.dtype)
    elseif type(one) ~= "string" then
      fail(("%s: to: expected a device, a dtype or {device = ..., dtype = ...}, got %s"):format(self:class_name(),
          mh._describe(one)))
    elseif one:find("^cpu") or one:find("^cuda") or one:find("^meta") then
      device = set("device", device, one)
    else
      dtype = set("dtype", dtype, one)
    end
  end
  mh._check_place(self:class_name() .. ": to", {device = device, dtype = dtype})
  if dtype then refuse_lost_halves(self, dtype) end
  return converted(self, function(tensor)
    local wanted = {device = device}
    if dtype and (tensor:is_floating_point() or tensor:is_complex()) then wanted.dtype = dtype end
    return next(wanted) == nil and tensor or tensor:to(wanted)
  end)
end

-- As in PyTorch, these leave complex tensors as they are.
local function cast(self, dtype)
  return converted(self, function(tensor) return tensor:is_floating_point() and tensor:to(dtype) or tensor end)
end
--- net:double() -> Module
--- net:float() -> Module
--- net:half() -> Module
--- net:bfloat16() -> Module
---   Converts floating-point parameters and buffers to float64, float32, float16 or bfloat16, in place.
---   returns     Module      net itself
---   collective  no
---   example
---     nn.Linear(2, 2):double().weight.dtype    --> float64
function conversion:double() return cast(self, "float64") end
function conversion:float() return cast(self, "float32") end
function conversion:half() return cast(self, "float16") end
function conversion:bfloat16() return cast(self, "bfloat16") end
--- net:cpu() -> Module
--- net:cuda() -> Module
---   Moves parameters and buffers to the CPU, or to the current GPU, in place.
---   returns     Module      net itself
---   collective  no
---   errors      ValueError: there is no GPU
---   example
---     nn.Linear(2, 2):cpu().weight.device    --> cpu
function conversion:cpu() return self:to("cpu") end
function conversion:cuda() return self:to("cuda") end

return conversion
