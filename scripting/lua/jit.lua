-- SPDX-License-Identifier: Apache-2.0
-- mh.jit: TorchScript modules, which Python saved, as modules of mh.nn.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local base = require "moonhalo.nn.module"

local fail = mh.fail
local jit = {}
local kLoad = arguments.signature("jit.load", {"path", arguments.optional "device"})
local kTrace = arguments.signature("jit.trace", {"net", "inputs", arguments.optional "check"})

--- A module of a TorchScript file. Its tensors are in the registries of nn.Module, so all that finds or replaces them
--- there works. What is replaced goes to the program before it runs.
local ScriptModule = base.Module:extend("ScriptModule")

-- Classes by the name of the Python class, so that plans and errors say "Linear".
local known_classes = {ScriptModule = ScriptModule}

local function class_of(name)
  known_classes[name] = known_classes[name] or ScriptModule:extend(name)
  return known_classes[name]
end

--- `made`: modules and tensors of the file that exist already, by key, since some are there under two names.
local function make(part, made)
  local facts = part:describe()
  if made[facts.key] then return made[facts.key] end
  local module = class_of(facts.class)(part, facts, made)
  return module
end

function ScriptModule:init(part, facts, made)
  if facts == nil then fail("ScriptModule: mh.jit.load(path) makes these") end
  made[facts.key] = self
  rawset(self, "_part", part)
  rawset(self, "training", facts.training)
  rawset(self, "_forward_names", facts.arguments)
  local links = {own = {}}
  for _, entry in ipairs(facts.tensors) do
    local name, tensor, is_parameter, key = table.unpack(entry)
    tensor = made[key] or tensor
    made[key] = tensor
    local registry = rawget(self, is_parameter and "_parameters" or "_buffers")
    registry[name] = is_parameter and base.as_parameter(tensor) or tensor
    rawget(self, "_known")[name] = true
    local link = {registry = registry, name = name, part = part, tensor = tensor}
    links[#links + 1], links.own[name] = link, link
  end
  local modules = {{module = self, part = part, training = facts.training}}
  for _, entry in ipairs(facts.children) do
    local child = make(entry[2], made)
    rawget(self, "_modules")[entry[1]] = child
    for _, link in ipairs(rawget(child, "_links")) do links[#links + 1] = link end
    for _, one in ipairs(rawget(child, "_below")) do modules[#modules + 1] = one end
  end
  rawset(self, "_links", links)
  rawset(self, "_below", modules)
  part:stand_for(self)
end

function ScriptModule:register_module(name, module)
  if rawget(self, "_modules")[name] ~= nil then
    fail(("%s: '%s' is part of the TorchScript program, which would not call another module\n" ..
      "  fix   mh.patch(net, {[\"%s\"] = function(self, forward, x) return other(x) end})"):format(self:class_name(),
      name, name))
  end
  base.Module.register_module(self, name, module)
end

--- For ModuleList and Sequential: `net.blocks[1]` is Python's `net.blocks[0]`.
function ScriptModule:at_position(i) return rawget(self, "_modules")[tostring(i - 1)] end
function ScriptModule:length()
  local count = 0
  while rawget(self, "_modules")[tostring(count)] do count = count + 1 end
  return count
end

--- The program computes with the tensors and in the mode (train, eval) that the modules have now.
local function bring_up_to_date(self)
  for _, link in ipairs(self._links) do
    local tensor = rawget(link.registry, link.name)
    if not rawequal(tensor, link.tensor) then
      if tensor == nil then
        fail(("%s: '%s' was removed, the program needs it"):format(self:class_name(), link.name))
      end
      link.part:set(link.name, tensor)
      link.tensor = tensor
    end
  end
  for _, one in ipairs(self._below) do
    local training = one.module.training
    if training ~= one.training then
      one.part:set_training(training)
      one.training = training
    end
  end
end

--- The program assigned a buffer: `self.steps = self.steps + 1`.
local function take(module, name, tensor)
  local link = module._links.own[name]
  link.registry[name], link.tensor = tensor, tensor
end

function ScriptModule:forward(...)
  bring_up_to_date(self)
  return self._part:run(take, "forward", ...)
end

--- Runs another method of the TorchScript module, one that Python marked by torch.jit.export.
function ScriptModule:call_method(name, ...)
  if type(name) ~= "string" then
    fail(("%s: call_method: expected the name of a method, got %s"):format(self:class_name(), mh._describe(name)))
  end
  bring_up_to_date(self)
  return self._part:run(take, name, ...)
end

--- Writes the file that Python's torch.jit.load and mh.jit.load read. ShardTensors are written whole. Rank 0 writes.
--- Collective over the world.
function ScriptModule:save(path)
  if type(path) ~= "string" then
    fail(("%s: save: the path is a string, got %s"):format(self:class_name(), mh._describe(path)))
  end
  bring_up_to_date(self)
  if mh.backend() == "fake" then
    local own = {}
    for name, tensor in self:state_dict() do own[#own + 1] = {name, tensor} end
    return mh._dry_run_save{own}
  end
  self._part:save(path)
end

--- mh.jit.load(path, {device = nil}) -> Module
---   The model that Python saved by torch.jit.script(net).save(path) or torch.jit.trace(net, x).save(path), as a
---   module like those of mh.nn: with its parameters, buffers, names, children and hooks. A tuple that forward gives is
---   several results, a list is a list, a dict is a table. Arguments may be given by name in a table at the end.
---   In mh.deferred_init large tensors are deferred: each rank reads what it owns when they are distributed.
---   path        string      of a file that this rank sees; each rank reads it for itself
---   device      string?     where the tensors go; the device of the run unless given
---   returns     Module      in the mode, training or not, in which it was saved
---   collective  no
---   errors      ValueError: no TorchScript module in the file
---               NotImplementedError: a program that starts threads (torch.jit.fork)
---   example
---     mh.jit.trace(nn.Linear(2, 3):eval(), {mh.ones{1, 2}}):save(folder .. "/traced.pt")
---     mh.jit.load(folder .. "/traced.pt")(mh.ones{4, 2}).shape    --> {4, 3}
function jit.load(...)
  local given = arguments.read(kLoad, ...)
  return make(mh._load_script(arguments.text("jit.load", "path", given.path), given.device), {})
end

--- The facts of a module that C++ needs; `made`: tables of modules that were there before.
local function described(module, made)
  if made[module] then return made[module] end
  local facts = {class = module:class_name():gsub("%W", "_"), parameters = {}, buffers = {}, children = {}}
  made[module] = facts
  for _, kind in ipairs {"parameters", "buffers"} do
    for name, tensor in rawget(module, "_" .. kind) do table.insert(facts[kind], {name, tensor}) end
  end
  for name, child in module:named_children() do table.insert(facts.children, {name, described(child, made)}) end
  return facts
end

local function check_inputs(what, inputs)
  if mh.is_tensor(inputs) then inputs = {inputs} end
  if type(inputs) ~= "table" or getmetatable(inputs) or #inputs == 0 then
    fail(("jit.trace: %s are a list of tensors, got %s"):format(what, mh._describe(inputs)))
  end
  for i, tensor in ipairs(inputs) do
    if not mh.is_tensor(tensor) then
      fail(("jit.trace: %s are tensors, number %d is %s"):format(what, i, mh._describe(tensor)))
    end
  end
  return inputs
end

--- mh.jit.trace(net, inputs, {check = nil}) -> Module
---   Runs net(inputs...) once and makes a TorchScript module of its operators, for Python: torch.jit.load reads what
---   its save(path) writes. Parameters, buffers and children keep their names. Numbers that forward computes itself,
---   such as sizes, become constants. The result is compared with net on other inputs.
---   net         Module      not in training mode
---   inputs      {Tensor}    plain tensors, the arguments of one call
---   check       {Tensor}?   inputs to compare on; multiples of the first unless given
---   returns     Module      save(path) writes it: collective over the world, rank 0 writes, ShardTensors whole
---   collective  no
---   errors      ValueError: a net in training mode, or results that differ on the other inputs
---               TypeError: a ShardTensor
---               NotImplementedError: operators that PyTorch does not have
---   example
---     mh.jit.trace(nn.ReLU():eval(), {mh.ones{2}})(mh.tensor{-1.0, 2.0}):tolist()[2]    --> 2.0
function jit.trace(...)
  local given = arguments.read(kTrace, ...)
  local net = arguments.module("jit.trace", given.net)
  local inputs = check_inputs("the inputs", given.inputs)
  for name, module in net:named_modules() do
    if module.training then
      local what = name == "" and "the module" or ("'%s'"):format(name)
      fail(("jit.trace: %s is in training mode, which a traced program would keep\n  fix   net:eval()"):format(what))
    end
  end
  local check = given.check
  if check == nil then
    check = {}
    for i, tensor in ipairs(inputs) do check[i] = tensor:is_floating_point() and tensor:detach() * 0.75 or tensor end
  end
  return make(mh._trace_script(described(net, {}), inputs, check_inputs("the check's inputs", check), net), {})
end

return jit
