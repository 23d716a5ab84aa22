-- SPDX-License-Identifier: Apache-2.0
-- The class of all modules: fields that are modules, parameters or buffers are registered when they are assigned.
-- Names, order and defaults follow torch.nn.Module.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local field_checks = require "moonhalo.nn.field_checks"
local ordered_map = require "moonhalo.internal.ordered_map"

local fail, is_tensor = mh.fail, mh.is_tensor

local Module = {name = "Module"}
local registries = require "moonhalo.internal.registries"
local all_classes, all_instances = registries.all_classes, registries.all_instances
all_classes[Module] = true

--- mh.nn.is_module(value) -> boolean
---   Whether a value is an instance of a module class.
---   value       any         what is asked about
---   returns     boolean     false for classes
---   collective  no
---   example
---     nn.is_module(nn.ReLU()), nn.is_module(nn.ReLU)    --> true  false

local function is_module(value) return type(value) == "table" and all_instances[value] == true end

--- Has modules take this very tensor for a parameter, whether it requires a gradient or not.
local function as_parameter(tensor)
  mh._training.note_parameter(tensor)
  return tensor
end

--- mh.nn.Parameter(tensor, requires_grad = true) -> Tensor
---   A tensor that a module trains: a leaf that requires a gradient and shares memory with `tensor`. Assigned to a
---   field of a module, it is part of parameters() and state_dict().
---   tensor      Tensor      initial values
---   requires_grad   boolean   false for one that is saved but not trained
---   returns     Tensor      a leaf
---   collective  no
---   errors      TypeError: not a tensor, or one of integers that cannot require a gradient
---   example
---     local w = nn.Parameter(mh.ones{2, 3})
---     w.requires_grad, w.is_leaf    --> true  true
local function Parameter(tensor, requires_grad)
  if not is_tensor(tensor) then fail("Parameter: expected a tensor, got " .. mh._describe(tensor)) end
  if type(requires_grad) == "table" then
    requires_grad = arguments.only_flag("Parameter", requires_grad, "requires_grad", true)
  end
  if requires_grad ~= nil then arguments.flag("Parameter", "requires_grad", requires_grad) end
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
    fail(("%s: %s name must be a string without '.', got %s"):format(self:class_name(), what, mh._describe(name)))
  end
  if Module[name] ~= nil then
    fail(("%s: '%s' is a method of every module and cannot be the name of a %s"):format(self:class_name(), name, what))
  end
end

local function forget(self, name)
  for _, registry in ipairs {"_parameters", "_buffers", "_modules", "_volatile"} do
    rawget(self, registry)[name] = nil
  end
  rawset(self, name, nil)
end

local function assign(self, name, value)
  local computed = rawget(self, "_computed")
  if computed and computed[name] then
    computed[name].set(value)
  elseif is_module(value) then
    self:register_module(name, value)
  elseif is_parameter(value) or (rawget(self, "_parameters")[name] ~= nil and is_tensor(value)) then
    self:register_parameter(name, value)
  elseif is_tensor(value) and rawget(self, "_buffers")[name] ~= nil then
    rawget(self, "_buffers")[name] = value
  else
    field_checks.hidden_method(self, name, value, Module)
    field_checks.hidden_modules(self, name, value, is_module)
    field_checks.forgotten_parameter(self, name, value)
    forget(self, name)
    rawget(self, "_known")[name] = true
    rawset(self, name, value)
  end
end

--- net:register_module(name, module) -> nothing
--- net:add_module(name, module) -> nothing
---   Adds a submodule; self.name = module does the same.
---   name        string      without dots, and not that of a method
---   module      Module      the submodule
---   returns     nothing
---   collective  no
---   errors      ValueError: another kind of value or name
---   example
---     local net = nn.Sequential()
---     net:register_module("first", nn.ReLU())
---     tostring(net.first)    --> ReLU()
function Module:register_module(name, module)
  check_name(self, name, "submodule")
  if not is_module(module) then
    fail(("%s: submodule '%s' is not a module but %s"):format(self:class_name(), name, mh._describe(module)))
  end
  forget(self, name)
  rawget(self, "_modules")[name] = module
end
Module.add_module = Module.register_module

local function check_tensor_or_nil(self, name, tensor, what)
  if tensor == nil or is_tensor(tensor) then return end
  fail(("%s: %s '%s' is not a tensor but %s"):format(self:class_name(), what, name, mh._describe(tensor)))
end

--- net:register_parameter(name, tensor) -> nothing
---   Adds a parameter; self.name = nn.Parameter(tensor) does the same. With nil it registers nothing, as a layer
---   without bias does, and self.name is nil.
---   name        string      without dots, and not that of a method
---   tensor      Tensor?     the parameter
---   returns     nothing
---   collective  no
---   errors      ValueError: another kind of value or name
---   example
---     local net = nn.Identity()
---     net:register_parameter("w", nn.Parameter(mh.ones{3}))
---     #net:parameters()    --> 1
function Module:register_parameter(name, tensor)
  check_name(self, name, "parameter")
  check_tensor_or_nil(self, name, tensor, "parameter")
  local registered = rawget(self, "_parameters")
  rawget(self, "_known")[name] = true
  if is_tensor(tensor) then mh._training.note_parameter(tensor) end
  if registered[name] == nil or tensor == nil then forget(self, name) end
  registered[name] = tensor
end

--- net:register_buffer(name, tensor, {persistent = true}) -> nothing
---   Adds a tensor that belongs to the state of the module but is not trained.
---   name        string      without dots, and not that of a method
---   tensor      Tensor?     the buffer
---   persistent   boolean    whether it is part of state_dict()
---   returns     nothing
---   collective  no
---   errors      ValueError: another kind of value or name
---   example
---     local net = nn.Identity()
---     net:register_buffer("mask", mh.ones{3})
---     net:state_dict().mask.shape, #net:parameters()    --> {3}  0
function Module:register_buffer(name, tensor, options)
  check_name(self, name, "buffer")
  check_tensor_or_nil(self, name, tensor, "buffer")
  local persistent = arguments.only_flag("register_buffer", options, "persistent", true)
  forget(self, name)
  rawget(self, "_known")[name] = true
  rawget(self, "_buffers")[name] = tensor
  if not persistent then rawget(self, "_volatile")[name] = true end
end

-- ---- Classes ------------------------------------------------------------------------------------------------------

local function find(self, class, key)
  local value = rawget(self, "_parameters")[key]
  if value == nil then value = rawget(self, "_modules")[key] end
  if value == nil then value = rawget(self, "_buffers")[key] end
  if value ~= nil then return value end
  local computed = rawget(self, "_computed")
  if computed and computed[key] then return computed[key].get() end
  return class[key]
end

-- Fields that mh.parallelize adds to a module that it divides.
local kOfParallelize = {infer_step = true, parallel = true, train_step = true}

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
  if kOfParallelize[key] then
    fail(("%s: no field '%s', which mh.parallelize adds to a module that it divides\n" ..
      "  have  a %s that is not divided\n" ..
      "  fix   divide it: mh.parallelize(...) without load_module = false, which only returns the plan"):format(
      self:class_name(), key, self:class_name()))
  end
  fail(("%s: no field '%s'%s\n" ..
    "  fix   assign it in init (self.%s = nil will do), or test for it with module:has(\"%s\")"):format(
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

local function takes_none(_) end  -- as the init of a class that has none

local function construct(class, ...)
  local self = setmetatable({
    _parameters = ordered_map(), _buffers = ordered_map(), _modules = ordered_map(), _volatile = {}, _known = {},
    _pre_hooks = {}, _hooks = {}, training = true,
  }, class.instance_meta)
  all_instances[self] = true
  mh._check_module_call(class.init == Module.init and takes_none or class.init, class.name, self, ...)
  self:init(...)
  return self
end

local kConstruct = mh._framed(construct)

--- For copies of modules, which no class has made.
local function adopt(instance) all_instances[instance] = true end

--- mh.nn.Module:extend(name) -> Class
---   A class of modules: write its init and forward, then Class(...) makes one. Class.super is the class it extends.
---   name        string      its name in printed models and errors
---   returns     Class       to which methods are added: function Block:forward(x) ... end
---   collective  no
---   errors      ValueError: called on something that is not a class
---   example
---     local Scale = nn.Module:extend("Scale")
---     function Scale:init(factor) self.factor = factor end
---     function Scale:forward(x) return x * self.factor end
---     local scale = Scale(3)
---     scale(mh.ones{2}):tolist()    --> {3.0, 3.0}
function Module:extend(name)
  if not all_classes[self] then fail("extend: call it on a class, nn.Module:extend(\"Name\")") end
  local class = setmetatable({name = name or "Module", super = self}, {__index = self, __call = kConstruct})
  class.instance_meta = new_meta(class)
  all_classes[class] = true
  return class
end

--- net:init(...) -> nothing
---   What a class does when a module is made: it gets the arguments and assigns fields. Submodules and parameters that
---   are assigned are registered.
---   returns     nothing
---   collective  as what it does
---   example
---     local Net = nn.Module:extend("Net")
---     function Net:init(width) self.fc = nn.Linear(width, 1) end
---     Net(4).fc.weight.shape    --> {1, 4}
function Module:init() end
--- net:class_name() -> string
---   The name of the module's class.
---   returns     string      as given to extend
---   collective  no
---   example
---     nn.Conv2d(1, 1, 1):class_name()    --> Conv2d
function Module:class_name() return getmetatable(self).__name end
--- net:has(name) -> boolean
---   Whether the module has a field, parameter, buffer, submodule or method of this name. A name that was never
---   assigned is an error when it is read.
---   name        string      what is asked about
---   returns     boolean     false for nil
---   collective  no
---   example
---     nn.Linear(2, 2):has("weight"), nn.Linear(2, 2):has("wait")    --> true  false
function Module:has(name) return rawget(self, name) ~= nil or find(self, getmetatable(self).class, name) ~= nil end
--- Keeps the options that arguments.read gave, for layers; those left out are nil.
function Module:_keep(spec, values)
  for _, name in ipairs(spec.names) do rawget(self, "_known")[name] = true end
  for name, value in pairs(values) do rawset(self, name, value) end
end
--- net:length() -> integer
---   The length that #net gives; only containers have one.
---   returns     integer     of containers the number of modules
---   collective  no
---   errors      ValueError: the module has no length
---   example
---     #nn.Sequential(nn.ReLU())    --> 1
function Module:length() fail(self:class_name() .. ": has no length") end
--- net:forward(...) -> any
---   What the module computes. Classes write it; call net(...) instead, which also runs hooks.
---   returns     any         what the class returns
---   collective  as the operators in it
---   errors      ValueError: the class has no forward
---   example
---     nn.ReLU():forward(mh.tensor{-1.0, 1.0}):tolist()    --> {0.0, 1.0}
function Module:forward(...)  -- luacheck: ignore
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

--- net:call(...) -> any
---   Runs hooks and forward: the same as net(...).
---   returns     any         the results of forward, as hooks have changed them
---   collective  as forward
---   example
---     nn.ReLU():call(mh.tensor{-1.0, 1.0}):tolist()    --> {0.0, 1.0}
function Module:call(...)
  if not is_module(self) then
    fail("call: expected an nn.Module, got " .. mh._describe(self) .. "\n  fix   net:call(...), or net(...)")
  end
  if next(self._pre_hooks) == nil and next(self._hooks) == nil then return self:forward(...) end
  local args = table.pack(...)
  for _, hook in ipairs {table.unpack(self._pre_hooks)} do  -- a hook may remove itself
    local changed = hook.call(self, args)
    if changed ~= nil then args = packed(changed) end
  end
  mh._check_module_call(self.forward, self:class_name(), self, table.unpack(args, 1, args.n))
  local results = table.pack(self:forward(table.unpack(args, 1, args.n)))
  for _, hook in ipairs {table.unpack(self._hooks)} do
    local output = results
    if results.n == 1 then output = results[1] end
    local changed = hook.call(self, args, output)
    if type(changed) == "table" and not getmetatable(changed) and changed.n ~= nil then
      results = changed
    elseif changed ~= nil then
      results = {changed, n = 1}
    end
  end
  return table.unpack(results, 1, results.n)
end

--- Hooks stand in tables of their own: one function may be several.
local function add_hook(op, hooks, hook, options)
  if not arguments.is_callable(hook) then
    fail(("%s: the hook is not a function but %s"):format(op, mh._describe(hook)))
  end
  local added = {call = hook}
  table.insert(hooks, arguments.only_flag(op, options, "prepend", false) and 1 or #hooks + 1, added)
  return {
    remove = function()
      for i, one in ipairs(hooks) do
        if one == added then return table.remove(hooks, i) end
      end
    end,
  }
end

--- net:register_forward_pre_hook(hook, {prepend = false}) -> table
---   Calls hook(module, args) before forward. args is the list of arguments, args.n their number. The hook may return
---   new arguments: a list, or one value.
---   hook        function    hook(module, args)
---   prepend     boolean     before the hooks that are there
---   returns     table       {remove}: remove() takes the hook away
---   collective  no
---   errors      ValueError: the hook is not a function
---   example
---     local net = nn.ReLU()
---     net:register_forward_pre_hook(function(_, args) return args[1] + 5 end)
---     net(mh.zeros{1}):item()    --> 5.0
function Module:register_forward_pre_hook(hook, options)
  return add_hook("register_forward_pre_hook", self._pre_hooks, hook, options)
end

--- net:register_forward_hook(hook, {prepend = false}) -> table
---   Calls hook(module, args, output) after forward. output is the result, or a list with n where forward returned
---   several. What the hook returns replaces it.
---   hook        function    hook(module, args, output)
---   prepend     boolean     before the hooks that are there
---   returns     table       {remove}: remove() takes the hook away
---   collective  no
---   errors      ValueError: the hook is not a function
---   example
---     local net, seen = nn.Linear(3, 2), nil
---     net:register_forward_hook(function(module, _, output) seen = output.shape end)
---     net(mh.ones{4, 3})
---     seen    --> {4, 2}
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

--- net:named_modules() -> map
---   Name and module of this module (name "") and all below, each once, in the order of assignment: for name, module in
---   net:named_modules() do ... end.
---   returns     map         ordered, by name
---   collective  no
---   example
---     for name in nn.Sequential(nn.ReLU()):named_modules() do print("'" .. name .. "'") end    --> '' | '0'
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

--- net:named_parameters() -> map
--- net:named_buffers() -> map
---   Name and tensor of each parameter, or buffer, of this module and all below; one that is shared appears once: for
---   name, parameter in net:named_parameters() do ... end.
---   returns     map         ordered, by name
---   collective  no
---   example
---     for name in nn.Sequential(nn.Linear(2, 2)):named_parameters() do print(name) end    --> 0.weight | 0.bias
function Module:named_parameters() return named_tensors(self, "_parameters") end
function Module:named_buffers() return named_tensors(self, "_buffers") end
--- net:parameters() -> {Tensor}
--- net:buffers() -> {Tensor}
---   The parameters, or buffers, of this module and all below, each once.
---   returns     {Tensor}    in the order of named_parameters(), named_buffers()
---   collective  no
---   example
---     #nn.Linear(2, 2):parameters()    --> 2
function Module:parameters() return values_of(self:named_parameters()) end
--- net:num_parameters({trained = false}) -> integer
---   The number of elements of all parameters, each once, whole where they are cut.
---   trained     boolean     only of those that require gradients
---   returns     integer
---   collective  no
---   errors      ValueError: an unknown option
---   example
---     nn.Linear(3, 4):num_parameters()    --> 16
function Module:num_parameters(options)
  local trained, count = arguments.only_flag("num_parameters", options, "trained", false), 0
  for _, parameter in self:named_parameters() do
    if not trained or parameter.requires_grad then count = count + parameter:numel() end
  end
  return count
end
function Module:buffers() return values_of(self:named_buffers()) end
--- net:modules() -> {Module}
---   This module and all below, each once.
---   returns     {Module}    in the order of named_modules()
---   collective  no
---   example
---     #nn.Sequential(nn.ReLU(), nn.ReLU()):modules()    --> 3
function Module:modules() return values_of(self:named_modules()) end
--- net:named_children() -> map
---   Name and module of the submodules of this module alone.
---   returns     map         ordered, by name
---   collective  no
---   example
---     for name, child in nn.Sequential(nn.ReLU()):named_children() do print(name, child) end    --> 0  ReLU()
function Module:named_children()
  local found = ordered_map()
  for name, child in self._modules do found[name] = child end
  return found
end
--- net:children() -> {Module}
---   The submodules of this module alone.
---   returns     {Module}    in the order of assignment
---   collective  no
---   example
---     #nn.Sequential(nn.ReLU(), nn.ReLU()):children()    --> 2
function Module:children() return values_of(self._modules) end

local function check_path(self, name, method)
  if type(name) ~= "string" then
    fail(("%s: %s: the name is %s, expected a string"):format(self:class_name(), method, mh._describe(name)))
  end
end

--- net:get_submodule(name) -> Module
---   The module below under a dotted name, this one for "".
---   name        string      such as "blocks.0.fc"
---   returns     Module      the module
---   collective  no
---   errors      ValueError: there is none, with the nearest name
---   example
---     nn.Sequential(nn.Sequential(nn.Tanh())):get_submodule("0.0"):class_name()    --> Tanh
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

--- net:get_parameter(name) -> Tensor
--- net:get_buffer(name) -> Tensor
---   The parameter, or buffer, under a dotted name.
---   name        string      such as "blocks.0.weight"
---   returns     Tensor      the tensor of the module, not a copy
---   collective  no
---   errors      ValueError: there is none, with the nearest name
---   example
---     nn.Sequential(nn.Linear(2, 3)):get_parameter("0.weight").shape    --> {3, 2}
function Module:get_parameter(name) return tensor_at(self, name, "get_parameter") end
function Module:get_buffer(name) return tensor_at(self, name, "get_buffer") end

--- net:set_requires_gradient_sync(sync) -> Module
---   Whether gradients are summed over the ranks during backward, several in one message (true), or add up over several
---   passes, whole on every rank, until the optimizer's step (false). At first those of mh.fully_shard are summed,
---   except with reshard_after_backward = false, and those of mh.replicate are not. mh.accumulate calls it.
---   sync        boolean     the same on all ranks
---   returns     Module      net itself
---   collective  no
---   errors      ValueError: neither true nor false
---   example
---     nn.Linear(2, 2):set_requires_gradient_sync(false):class_name()    --> Linear
function Module:set_requires_gradient_sync(sync)
  if type(sync) ~= "boolean" then
    fail(("%s: set_requires_gradient_sync: expected true or false, got %s"):format(self:class_name(),
        mh._describe(sync)))
  end
  mh._training.requires_gradient_sync(self:parameters(), sync)
  return self
end

--- net:finish_grad_sync() -> nothing
---   Reduces the gradients of this module that are still sums over the ranks, as mh.finish_grad_sync(net). Optimizers
---   do it in their step.
---   returns     nothing
---   collective  over the meshes of the parameters
---   example
---     nn.Linear(2, 2):finish_grad_sync()
---     mh.rank() < mh.world_size()    --> true
function Module:finish_grad_sync() mh.finish_grad_sync(self) end

--- net:apply(fn) -> Module
---   Calls fn(module) for every module below, children first, then for this one.
---   fn          function    fn(module)
---   returns     Module      net itself
---   collective  as fn
---   errors      ValueError: fn is not a function
---   example
---     local net = nn.Sequential(nn.ReLU()):apply(function(one) print(one:class_name()) end)    --> ReLU | Sequential
function Module:apply(fn)
  if not arguments.is_callable(fn) then
    fail(("%s: apply: expected a function, got %s"):format(self:class_name(), mh._describe(fn)))
  end
  for _, child in self._modules do child:apply(fn) end
  fn(self)
  return self
end

-- ---- State --------------------------------------------------------------------------------------------------------

local state = require "moonhalo.nn.state"
--- net:load_state_dict(state, options = nil) -> table
---   Copies values into parameters and buffers. Values may be placed otherwise, and of another dtype. Of tensors that
---   are still in a file of mh.load, only the blocks of this rank are read.
---   state       table       tensors by name: of state_dict(), mh.load or mh.safetensors.load; a module that was
---                           pickled whole, as mh.load gives it
---   options     table?      {strict = true, rename = nil, dtype = false}. strict = false accepts missing and
---                           unexpected names. rename: {{pattern, replacement}, ...}, patterns of Lua, applied to
---                           each name of `state` in this order; or a function that gives the new name, or nil for a
---                           tensor to leave out. dtype = true refuses other dtypes, false casts
---   returns     table       {missing_keys, unexpected_keys}: lists of names that were left over on either side
---   collective  over the meshes of tensors that are placed otherwise
---   errors      ValueError: names, shapes or dtypes differ, with all of them; nothing has changed then
---   example
---     local a, b = nn.Linear(2, 2), nn.Linear(2, 2)
---     b:load_state_dict(a:state_dict())
---     a.weight:equal(b.weight)    --> true
---     local given = {["module.weight"] = mh.ones{2, 2}, step = mh.tensor(1)}
---     local left = b:load_state_dict(given, {rename = {{"^module%.", ""}}, strict = false})
---     left.missing_keys[1], left.unexpected_keys[1]    --> bias  step

--- net:state_dict() -> map
---   Parameters and persistent buffers by dotted name, as PyTorch names them. They share memory with the module.
---   returns     map         ordered: state["fc.weight"], pairs(state)
---   collective  no
---   example
---     nn.Linear(2, 3):state_dict().weight.shape    --> {3, 2}
Module.state_dict, Module.load_state_dict = state.state_dict, state.load_state_dict

--- net:train(mode = true) -> Module
---   Sets net.training of this module and all below: dropout drops, batch norm uses the batch.
---   mode        boolean     false as eval() does
---   returns     Module      net itself
---   collective  no
---   example
---     nn.Dropout():eval():train().training    --> true
function Module:train(mode)
  if mode ~= nil then arguments.flag(self:class_name() .. ": train", "mode", mode) end
  for _, module in self:named_modules() do rawset(module, "training", mode ~= false) end
  return self
end
--- net:eval() -> Module
---   The same as train(false): no dropout, running statistics.
---   returns     Module      net itself
---   collective  no
---   example
---     nn.Dropout():eval().training    --> false
function Module:eval() return self:train(false) end

--- net:requires_grad_(flag = true) -> Module
---   Sets whether backward computes gradients of the parameters.
---   flag        boolean     false freezes the module
---   returns     Module      net itself
---   collective  no
---   example
---     nn.Linear(2, 2):requires_grad_(false).weight.requires_grad    --> false
function Module:requires_grad_(flag)
  if flag ~= nil then arguments.flag(self:class_name() .. ": requires_grad_", "flag", flag) end
  for _, parameter in self:named_parameters() do parameter:requires_grad_(flag ~= false) end
  return self
end

local kZeroGrad = arguments.signature("Module:zero_grad", {{"set_to_none", true}})

--- net:zero_grad({set_to_none = true}) -> nothing
---   Removes the gradients of all parameters.
---   set_to_none   boolean   false fills them with zeros instead
---   returns     nothing
---   collective  no
---   example
---     local net = nn.Linear(2, 1)
---     net(mh.ones{1, 2}):sum():backward()
---     net:zero_grad()
---     net.weight.grad    --> nil
function Module:zero_grad(...)
  local to_none = arguments.read(kZeroGrad, ...).set_to_none
  for _, parameter in self:named_parameters() do
    local grad = parameter.grad
    parameter.grad = not to_none and grad and grad:detach():zero_() or nil
  end
end

local conversion = require "moonhalo.nn.conversion"
for name, method in pairs(conversion) do Module[name] = method end

-- ---- Text ---------------------------------------------------------------------------------------------------------

--- mh.nn.Module:show(value) -> string
---   A value as Python prints it, for extra_repr: Module.show(value), without a colon.
---   value       any         an option
---   returns     string      "True", "None", "(3, 3)"
---   collective  no
---   example
---     nn.Module.show{3, 3}, nn.Module.show(true)    --> (3, 3)  True
function Module.show(value)
  if value == true then return "True" end
  if value == false then return "False" end
  if value == nil then return "None" end
  if type(value) ~= "table" then return tostring(value) end
  local parts = {}
  for i = 1, rawlen(value) do parts[i] = mh._describe(rawget(value, i)) end
  return "(" .. table.concat(parts, ", ") .. (#parts == 1 and ",)" or ")")
end

--- net:extra_repr() -> string
---   The text between the parentheses of a printed module, before its submodules. Classes may write it.
---   returns     string      "" unless the class writes it
---   collective  no
---   example
---     nn.Dropout(0.25):extra_repr()    --> p=0.25
function Module:extra_repr() return "" end

--- net:to_string() -> string
---   The module as PyTorch prints it; tostring(net) and print(net) use it.
---   returns     string      several lines where there are submodules
---   collective  no
---   example
---     nn.Linear(2, 3):to_string()    --> Linear(in_features=2, out_features=3, bias=True)
function Module:to_string()
  local lines, extra = {}, self:extra_repr()
  for name, child in self._modules do
    lines[#lines + 1] = ("(%s): %s"):format(name, (tostring(child):gsub("\n", "\n  ")))
  end
  if #lines == 0 then return self:class_name() .. "(" .. extra .. ")" end
  if extra ~= "" then table.insert(lines, 1, extra) end
  return self:class_name() .. "(\n  " .. table.concat(lines, "\n  ") .. "\n)"
end

local function is_class(value) return all_classes[value] == true end

-- ---- Errors -------------------------------------------------------------------------------------------------------

--- The shortest name of `required` below `module`, "" for itself, nil when it is not there.
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

Module.show, Module.extend = mh._framed(Module.show), mh._framed(Module.extend)
local kOfClasses = {extend = true, show = true, call = true}
for name, method in pairs(Module) do
  local is_method = type(method) == "function" and not kOfClasses[name]
  if is_method then Module[name] = mh._method(method, name, all_instances, "Module") end
end

return {Module = Module, Parameter = Parameter, as_parameter = as_parameter, is_module = is_module, is_class = is_class,
  is_parameter = is_parameter, adopt = adopt, forget = forget}
