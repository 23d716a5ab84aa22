-- SPDX-License-Identifier: Apache-2.0
-- The graph that a policy reads: the operators of one forward of dummy arguments, as plain data.

local mh = require "moonhalo"
local at_end = require "moonhalo.internal.at_end"
local parallelize = require "moonhalo.internal.parallelize"

local fail, is_tensor = mh.fail, mh.is_tensor
local policy_graph = {}

-- ---- Arguments ------------------------------------------------------------------------------------------------------

--- The names of forward's arguments; those of a Sequential are its first module's.
local function names_of(module)
  local first = module
  while first:class_name() == "Sequential" and not rawget(first, "_forward_names") and #first > 0 do
    first = first[0]
  end
  local _, names, open = parallelize.argument_names(first)
  if #names == 0 then
    fail(("parallelize: forward of this %s names no arguments%s, and dummy arguments are given by name\n  fix   "
      .. "function %s:forward(x) ... end")
      :format(first:class_name(), open and " but takes any number (...)" or "", first:class_name()))
  end
  return names
end

--- The values of `dummy` = {x = tensor} in the order of forward's arguments; mh.none stands for nil.
function policy_graph.arguments(module, dummy)
  if type(dummy) ~= "table" or is_tensor(dummy) or getmetatable(dummy) then
    fail("parallelize: dummy arguments are a table by the names of forward's arguments, {x = mh.zeros{4, 16}}, got "
      .. mh._describe(dummy))
  end
  local names, known, values = names_of(module), {}, {n = 0}
  for i, name in ipairs(names) do
    known[name] = true
    if dummy[name] == nil then
      fail(("parallelize: the dummy argument '%s' is missing\n  have  forward(%s)\n  fix   {%s = ...}, mh.none for nil")
        :format(name, table.concat(names, ", "), name))
    end
    values[i], values.n = dummy[name] ~= mh.none and dummy[name] or nil, i
  end
  for name in pairs(dummy) do
    if not known[name] then
      fail(("parallelize: forward has no argument '%s'%s\n  have  forward(%s)"):format(tostring(name),
        mh.did_you_mean(tostring(name), names), table.concat(names, ", ")))
    end
  end
  return values, names
end

--- `visit(path, tensor)` for every tensor within `value`, in one order on all ranks.
local function each_tensor(path, value, visit)
  if is_tensor(value) then return visit(path, value) end
  if type(value) ~= "table" or getmetatable(value) then return end
  for key, one in pairs(value) do each_tensor(path .. "." .. tostring(key), one, visit) end
end

local function described(tensor) return ("%s[%s]"):format(tensor.dtype, table.concat(tensor.shape, ", ")) end

--- {["x"] = "float32[4, 16]"} of the arguments and of what is in their tables ("sample.1").
function policy_graph.describe_arguments(dummy)
  local found = {}
  for name, value in pairs(dummy) do
    each_tensor(name, value, function(path, tensor) found[path] = described(tensor) end)
  end
  return found
end

--- {["fc1.weight"] = "float32[32, 16]"} of parameters and buffers.
function policy_graph.describe_tensors(module)
  local found = {}
  for _, tensors in ipairs {module:named_parameters(), module:named_buffers()} do
    for name, tensor in tensors do found[name] = described(tensor) end
  end
  return found
end

-- ---- Tracing --------------------------------------------------------------------------------------------------------

--- Runs `fn` with other tensors in the place of the module's: `make(tensor, registry)`.
function policy_graph.with_tensors(module, make, fn)
  local before, made = {}, {}
  for _, one in module:named_modules() do
    for _, registry in ipairs {"_parameters", "_buffers"} do
      local tensors = rawget(one, registry)
      for name, tensor in tensors do
        before[#before + 1] = {tensors, name, tensor}
        made[tensor] = made[tensor] or make(tensor, registry)
      end
    end
  end
  local _ <close> = at_end(function()
    for _, slot in ipairs(before) do slot[1][slot[2]] = slot[3] end
  end)
  for _, slot in ipairs(before) do slot[1][slot[2]] = made[slot[3]] end
  return fn()
end

--- In the place of a deferred tensor: zeros. Parameters are one number, repeated, so that they take no memory; LibTorch
--- has no kernels of convolutions and norms for tensors without values. Forward may write buffers.
local function zeros_for(tensor, registry)
  if not tensor:is_deferred() then return tensor end
  local options = {dtype = tensor.dtype, device = tensor.device}
  if registry == "_buffers" then return mh.zeros(tensor.shape, options) end
  return mh.zeros({}, options):expand(tensor.shape)
end

--- Runs `fn` as in inference: nothing is recorded, no buffer changes and no random number is drawn by layers that train
--- otherwise.
function policy_graph.evaluated(module, fn)
  local modes = {}
  for _, one in module:named_modules() do modes[one] = one.training end
  local _ <close> = at_end(function()
    for one, mode in pairs(modes) do rawset(one, "training", mode) end
  end)
  module:eval()
  return mh.no_grad(fn)
end

local function has_deferred(module)
  for _, tensors in ipairs {module:parameters(), module:buffers()} do
    for _, tensor in ipairs(tensors) do
      if tensor:is_deferred() then return true end
    end
  end
  return false
end

--- One forward of the dummy arguments in eval mode, on plain tensors, on this rank alone; of a deferred module with
--- zeros. Returns {nodes = list of {op, module, inputs, outputs, macs}, arguments = {name = "float32[4,
--- 16]"}, tensors = likewise, of parameters and buffers, names = of the arguments, in order}; tensors of nodes are
--- {value, shape, dtype, parameter}, where equal values are one tensor.
function policy_graph.trace(module, dummy)
  local values, names = policy_graph.arguments(module, dummy)
  local function run()
    local parameters, tensors = {}, {}
    for name, parameter in module:named_parameters() do
      parameters[#parameters + 1], tensors[#tensors + 1] = name, parameter
    end
    local nodes = mh._call_graph.record(parameters, tensors, module, table.unpack(values, 1, values.n))
    for _, node in ipairs(nodes) do node.op = node.op:gsub("^aten::", "") end
    return nodes
  end
  local nodes = policy_graph.evaluated(module, function()
    if not has_deferred(module) then return run() end
    return policy_graph.with_tensors(module, zeros_for, run)
  end)
  return {
    nodes = nodes, names = names, arguments = policy_graph.describe_arguments(dummy),
    tensors = policy_graph.describe_tensors(module),
  }
end

return policy_graph
