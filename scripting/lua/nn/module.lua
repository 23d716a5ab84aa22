-- SPDX-License-Identifier: Apache-2.0
-- The class of all modules: fields that are modules, parameters or buffers are registered when they are assigned.
-- Names, order and defaults follow torch.nn.Module.

local mh = require "moonhalo"
local ordered_map = require "moonhalo.internal.ordered_map"

local fail, is_tensor = mh.fail, mh.is_tensor

local Module = {name = "Module"}
local kClasses = setmetatable({[Module] = true}, {__mode = "k"})
local kInstances = setmetatable({}, {__mode = "k"})

local function is_module(value) return type(value) == "table" and kInstances[value] == true end

--- Has modules take this very tensor for a parameter, whether it requires a gradient or not.
local function as_parameter(tensor)
  mh._training.note_parameter(tensor)
  return tensor
end

--- A tensor that a module trains: a leaf that requires a gradient unless told otherwise.
local function Parameter(tensor, requires_grad)
  if not is_tensor(tensor) then fail("Parameter: wanted a tensor, got " .. mh._describe(tensor)) end
  if requires_grad ~= false and not (tensor:is_floating_point() or tensor:is_complex()) then
    fail("Parameter: " .. mh._describe(tensor)
        .. " cannot require a gradient\n  fix   convert it, x:float(), or give false for the second argument")
  end
  local parameter = tensor:detach()
  if requires_grad ~= false then parameter:requires_grad_(true) end
  return as_parameter(parameter)
end

local function is_parameter(value) return is_tensor(value) and mh._training.is_parameter(value) end

-- ---- Fields -------------------------------------------------------------------------------------------------------

local function check_name(self, name, what)
  if type(name) ~= "string" or name == "" or name:find(".", 1, true) then
    fail(("%s: %s name must be a text without '.', got %s"):format(self:class_name(), what, mh._describe(name)))
  end
  if Module[name] ~= nil then
    fail(("%s: '%s' is a method of every module and cannot be the name of a %s"):format(self:class_name(), name, what))
  end
end

local function checked_options(op, options)
  if options ~= nil and (type(options) ~= "table" or getmetatable(options)) then
    fail(("%s: the options are a table, got %s"):format(op, mh._describe(options)))
  end
  return options or {}
end

local function forget(self, name)
  for _, registry in ipairs {"_parameters", "_buffers", "_modules"} do rawget(self, registry)[name] = nil end
  rawset(self, name, nil)
end

local function refuse_hidden_modules(self, name, value)
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
local function refuse_forgotten_parameter(self, name, value)
  if not (is_tensor(value) and value.requires_grad and value.is_leaf) then return end
  fail(("%s: '%s' is a tensor that requires a gradient but no Parameter, so it would be neither trained nor saved\n" ..
      "  have  shape {%s}\n"
    .. "  fix   self.%s = mh.nn.Parameter(tensor), or hold it in a list, self.%s = {tensor}, if it is none of the " ..
        "module's weights"):format(
    self:class_name(), name, table.concat(value.shape, ", "), name, name))
end

local function assign(self, name, value)
  if is_module(value) then
    self:register_module(name, value)
  elseif is_parameter(value) or (rawget(self, "_parameters")[name] ~= nil and is_tensor(value)) then
    self:register_parameter(name, value)
  elseif is_tensor(value) and rawget(self, "_buffers")[name] ~= nil then
    rawget(self, "_buffers")[name] = value
  else
    if type(value) == "table" and not getmetatable(value) then refuse_hidden_modules(self, name, value) end
    refuse_forgotten_parameter(self, name, value)
    forget(self, name)
    rawget(self, "_known")[name] = true
    rawset(self, name, value)
  end
end

function Module:register_module(name, module)
  check_name(self, name, "submodule")
  if not is_module(module) then
    fail(("%s: submodule '%s' is no module but %s"):format(self:class_name(), name, mh._describe(module)))
  end
  forget(self, name)
  rawget(self, "_modules")[name] = module
end
Module.add_module = Module.register_module

local function check_tensor_or_nil(self, name, tensor, what)
  if tensor == nil or is_tensor(tensor) then return end
  fail(("%s: %s '%s' is no tensor but %s"):format(self:class_name(), what, name, mh._describe(tensor)))
end

--- nil registers nothing, as a layer without bias does.
function Module:register_parameter(name, tensor)
  check_name(self, name, "parameter")
  check_tensor_or_nil(self, name, tensor, "parameter")
  local registered = rawget(self, "_parameters")
  rawget(self, "_known")[name] = true
  if is_tensor(tensor) then mh._training.note_parameter(tensor) end
  if registered[name] == nil or tensor == nil then forget(self, name) end
  registered[name] = tensor
end

--- A tensor that belongs to the state but is not trained; `{persistent = false}` keeps it out of state_dict.
function Module:register_buffer(name, tensor, options)
  check_name(self, name, "buffer")
  check_tensor_or_nil(self, name, tensor, "buffer")
  options = checked_options("register_buffer", options)
  forget(self, name)
  rawget(self, "_known")[name] = true
  rawget(self, "_buffers")[name] = tensor
  if options.persistent == false then rawget(self, "_volatile")[name] = true end
end

-- ---- Classes ------------------------------------------------------------------------------------------------------

local function find(self, class, key)
  local value = rawget(self, "_parameters")[key]
  if value == nil then value = rawget(self, "_modules")[key] end
  if value == nil then value = rawget(self, "_buffers")[key] end
  if value == nil then value = class[key] end
  return value
end

--- A field that was never assigned is a slip; one that was assigned nil, or was an option left out, is nil.
local function absent(self, class, key)
  if type(key) ~= "string" or rawget(self, "_known")[key] then return nil end
  local names = {}
  for _, registry in ipairs {"_parameters", "_buffers", "_modules"} do
    for name in rawget(self, registry) do names[#names + 1] = name end
  end
  for _, fields in ipairs {self, rawget(self, "_known")} do
    for name in pairs(fields) do
      if tostring(name):sub(1, 1) ~= "_" then names[#names + 1] = tostring(name) end
    end
  end
  while type(class) == "table" do
    for name in pairs(class) do names[#names + 1] = tostring(name) end
    class = rawget(class, "super")
  end
  fail(("%s: no field '%s'%s\n" ..
    "  fix   assign it in init (self.%s = nil will do), or ask for it by module:has(\"%s\")"):format(
    self:class_name(), key, mh.did_you_mean(key, names), key, key))
end

local function new_meta(class)
  local meta = {__name = class.name, class = class, __call = mh._module_call(class, Module.call)}
  function meta.__index(self, key)
    local value = find(self, class, key)
    if value ~= nil then return value end
    if math.type(key) == "integer" and class.at_position then return self:at_position(key) end
    return absent(self, class, key)
  end
  meta.__newindex = assign
  function meta.__tostring(self) return self:to_string() end
  function meta.__len(self) return self:length() end
  return meta
end

local function construct(class, ...)
  local self = setmetatable({
    _parameters = ordered_map(), _buffers = ordered_map(), _modules = ordered_map(), _volatile = {}, _known = {},
    _pre_hooks = {}, _hooks = {}, training = true,
  }, class.instance_meta)
  kInstances[self] = true
  self:init(...)
  return self
end

local kConstruct = mh._framed(construct)

--- A class of modules: `local Block = nn.Module:extend("Block")`, then `Block:init(...)`, `Block:forward(x)`, and
--- `Block(...)` makes one. `Block.super` is the class it extends.
function Module:extend(name)
  if not kClasses[self] then fail("extend: call it on a class, nn.Module:extend(\"Name\")") end
  local class = setmetatable({name = name or "Module", super = self}, {__index = self, __call = kConstruct})
  class.instance_meta = new_meta(class)
  kClasses[class] = true
  return class
end

function Module:init() end
function Module:class_name() return getmetatable(self).__name end
--- True if the module has a field, parameter, buffer, submodule or method of this name.
function Module:has(name) return rawget(self, name) ~= nil or find(self, getmetatable(self).class, name) ~= nil end
--- Keeps the options that arguments.read gave, for layers; those left out are nil.
function Module:_keep(spec, values)
  for _, name in ipairs(spec.names) do rawget(self, "_known")[name] = true end
  for name, value in pairs(values) do rawset(self, name, value) end
end
function Module:length() fail(self:class_name() .. ": has no length") end
function Module:forward()
  local name = self:class_name()
  fail(("%s: has no forward function\n  fix   function %s:forward(x) ... end"):format(name, name))
end

-- ---- Calls and hooks ----------------------------------------------------------------------------------------------

local function packed(value)
  if type(value) == "table" and not getmetatable(value) and not is_module(value) then
    value.n = value.n or #value
    return value
  end
  return {value, n = 1}
end

--- Runs hooks and forward. `module(...)` calls this, or forward itself where there are no hooks.
function Module:call(...)
  if not is_module(self) then
    fail("call: wanted an nn.Module, got " .. mh._describe(self) .. "\n  fix   net:call(...), or net(...)")
  end
  if next(self._pre_hooks) == nil and next(self._hooks) == nil then return self:forward(...) end
  local args = table.pack(...)
  for _, hook in ipairs(self._pre_hooks) do
    local changed = hook(self, args)
    if changed ~= nil then args = packed(changed) end
  end
  local results = table.pack(self:forward(table.unpack(args, 1, args.n)))
  for _, hook in ipairs(self._hooks) do
    local output = results
    if results.n == 1 then output = results[1] end
    local changed = hook(self, args, output)
    if type(changed) == "table" and not getmetatable(changed) and changed.n ~= nil then
      results = changed
    elseif changed ~= nil then
      results = {changed, n = 1}
    end
  end
  return table.unpack(results, 1, results.n)
end

local function is_callable(value)
  local meta = getmetatable(value)
  return type(value) == "function" or (type(meta) == "table" and meta.__call ~= nil)
end

local function add_hook(op, hooks, hook, options)
  if not is_callable(hook) then
    fail(("%s: the hook is no function but %s"):format(op, mh._describe(hook)))
  end
  table.insert(hooks, checked_options(op, options).prepend and 1 or #hooks + 1, hook)
  return {
    remove = function()
      for i, one in ipairs(hooks) do
        if rawequal(one, hook) then return table.remove(hooks, i) end
      end
    end,
  }
end

--- `hook(module, args)` runs before forward; `args` is the list of arguments (its `n` is their count). It may return
--- new arguments: a list, or one value. The result's `remove()` takes the hook off again.
function Module:register_forward_pre_hook(hook, options)
  return add_hook("register_forward_pre_hook", self._pre_hooks, hook, options)
end

--- `hook(module, args, output)` runs after forward. `output` is the result, or a list with `n` when forward returned
--- several values; what the hook returns replaces it (a list with `n` for several values).
function Module:register_forward_hook(hook, options)
  return add_hook("register_forward_hook", self._hooks, hook, options)
end

-- ---- Walking ------------------------------------------------------------------------------------------------------

local function walk(self, prefix, seen, visit)
  if seen[self] then return end
  seen[self] = true
  visit(prefix, self)
  for name, child in self._modules do
    walk(child, prefix == "" and name or prefix .. "." .. name, seen, visit)
  end
end

--- Name and module of this module (name "") and all below, in the order of assignment, each once.
function Module:named_modules()
  local found = ordered_map()
  walk(self, "", {}, function(name, module) found[name] = module end)
  return found
end

local function named_tensors(self, registry)
  local found, seen = ordered_map(), {}
  walk(self, "", {}, function(prefix, module)
    for name, tensor in rawget(module, registry) do
      if not seen[tensor] then
        seen[tensor] = true
        found[prefix == "" and name or prefix .. "." .. name] = tensor
      end
    end
  end)
  return found
end

local function values_of(map)
  local list = {}
  for _, value in map do list[#list + 1] = value end
  return list
end

--- Name and tensor, `for name, parameter in net:named_parameters() do`; a shared parameter appears once.
function Module:named_parameters() return named_tensors(self, "_parameters") end
function Module:named_buffers() return named_tensors(self, "_buffers") end
function Module:parameters() return values_of(self:named_parameters()) end
function Module:buffers() return values_of(self:named_buffers()) end
function Module:modules() return values_of(self:named_modules()) end
function Module:named_children()
  local found = ordered_map()
  for name, child in self._modules do found[name] = child end
  return found
end
function Module:children() return values_of(self._modules) end

local function check_path(self, name, method)
  if type(name) ~= "string" then
    fail(("%s: %s: the name is %s, wanted a text"):format(self:class_name(), method, mh._describe(name)))
  end
end

--- The module below under a dotted name, this one for "".
function Module:get_submodule(name)
  check_path(self, name, "get_submodule")
  local module, path = self, ""
  for part in name:gmatch("[^.]+") do
    local child = module._modules[part]
    if child == nil then
      local known = {}
      for one in module._modules do known[#known + 1] = one end
      fail(("%s: get_submodule: no submodule '%s' in '%s'%s"):format(self:class_name(), part, path,
          mh.did_you_mean(part, known)))
    end
    module, path = child, path == "" and part or path .. "." .. part
  end
  return module
end

local function tensor_at(self, name, method)
  check_path(self, name, method)
  local path, field = name:match("^(.*)%.([^.]+)$")
  local module = path and self:get_submodule(path) or self
  local known = module[method == "get_buffer" and "_buffers" or "_parameters"]
  local tensor = known[field or name]
  if tensor == nil then
    local names = {}
    for one in known do names[#names + 1] = one end
    fail(("%s: %s: no '%s'%s"):format(self:class_name(), method, name, mh.did_you_mean(field or name, names)))
  end
  return tensor
end

--- The parameter or buffer under a dotted name.
function Module:get_parameter(name) return tensor_at(self, name, "get_parameter") end
function Module:get_buffer(name) return tensor_at(self, name, "get_buffer") end

--- Sets whether gradients are summed over the ranks while backward goes on, several in one message (true), or add up
--- over several passes without messages, whole on every rank, until the optimizer's step or its sync_shard_grad
--- (false). At first mh.fully_shard's are summed, except with reshard_after_backward = false, and mh.replicate's are
--- not.
function Module:set_requires_gradient_sync(sync)
  if type(sync) ~= "boolean" then
    fail(("%s: set_requires_gradient_sync: wanted true or false, got %s"):format(self:class_name(), mh._describe(sync)))
  end
  mh._training.requires_gradient_sync(self:parameters(), sync)
  return self
end

--- mh.finish_grad_sync of this module: reduces its gradients that are still sums over the ranks. Collective.
function Module:finish_grad_sync() mh.finish_grad_sync(self) end

--- `fn` on every module below, children first, then on this one.
function Module:apply(fn)
  if not is_callable(fn) then
    fail(("%s: apply: wanted a function, got %s"):format(self:class_name(), mh._describe(fn)))
  end
  for _, child in self._modules do child:apply(fn) end
  fn(self)
  return self
end

-- ---- State --------------------------------------------------------------------------------------------------------

local state = require "moonhalo.nn.state"
Module.state_dict, Module.load_state_dict = state.state_dict, state.load_state_dict

function Module:train(mode)
  for _, module in self:named_modules() do rawset(module, "training", mode ~= false) end
  return self
end
function Module:eval() return self:train(false) end

function Module:requires_grad_(flag)
  for _, parameter in self:named_parameters() do parameter:requires_grad_(flag ~= false) end
  return self
end

function Module:zero_grad()
  for _, parameter in self:named_parameters() do parameter.grad = nil end
end

local conversion = require "moonhalo.nn.conversion"
for name, method in pairs(conversion) do Module[name] = method end

-- ---- Text ---------------------------------------------------------------------------------------------------------

--- Python's spelling, so that a printed model reads like PyTorch's.
function Module.show(value)
  if value == true then return "True" end
  if value == false then return "False" end
  if value == nil then return "None" end
  if type(value) ~= "table" then return tostring(value) end
  local parts = {}
  for i = 1, rawlen(value) do parts[i] = mh._describe(rawget(value, i)) end
  return "(" .. table.concat(parts, ", ") .. (#parts == 1 and ",)" or ")")
end

--- The text between the parentheses of `tostring`, before the submodules.
function Module:extra_repr() return "" end

function Module:to_string()
  local lines, extra = {}, self:extra_repr()
  for name, child in self._modules do
    lines[#lines + 1] = ("(%s): %s"):format(name, (tostring(child):gsub("\n", "\n  ")))
  end
  if #lines == 0 then return self:class_name() .. "(" .. extra .. ")" end
  if extra ~= "" then table.insert(lines, 1, extra) end
  return self:class_name() .. "(\n  " .. table.concat(lines, "\n  ") .. "\n)"
end

local function is_class(value) return kClasses[value] == true end

-- ---- Errors -------------------------------------------------------------------------------------------------------

--- The shortest name of `wanted` below `module`, "" for itself, nil when it is not there.
local function name_below(module, wanted)
  local level, seen = {{"", module}}, {[module] = true}
  while #level > 0 do
    local below = {}
    for _, entry in ipairs(level) do
      if rawequal(entry[2], wanted) then return entry[1] end
      for name, child in rawget(entry[2], "_modules") do
        if not seen[child] then
          seen[child] = true
          below[#below + 1] = {entry[1] == "" and name or entry[1] .. "." .. name, child}
        end
      end
    end
    level = below
  end
end

--- "blocks.0.fc (Linear) of Net" and "blocks.0.fc" for the modules that are running, innermost first; one that is
--- registered nowhere below its caller or the outermost begins a path of its own, "Sequential:0.fc".
mh._set_module_namer(function(running)
  local function class_name(module) return getmetatable(module).__name end
  local outermost = running[#running]
  local root, path, at, callers = outermost, "", outermost, ""
  local function here()
    return path == "" and class_name(root) or ("%s (%s) of %s"):format(path, class_name(at), class_name(root))
  end
  for i = #running - 1, 1, -1 do
    local name, of_outermost = name_below(at, running[i]), nil
    if root ~= outermost then of_outermost = name_below(outermost, running[i]) end
    if of_outermost then
      root, path, callers = outermost, of_outermost, ""
    elseif not name then
      callers = ", called by " .. here() .. callers
      root, path = running[i], ""
    elseif name ~= "" then
      path = path == "" and name or path .. "." .. name
    end
    at = running[i]
  end
  return here() .. callers, root == outermost and path or class_name(root) .. ":" .. path
end)

local kOfClasses = {extend = true, show = true, call = true}
for name, method in pairs(Module) do
  if type(method) == "function" and not kOfClasses[name] then Module[name] = mh._method(method, name, kInstances) end
end

return {Module = Module, Parameter = Parameter, as_parameter = as_parameter, is_module = is_module, is_class = is_class}
