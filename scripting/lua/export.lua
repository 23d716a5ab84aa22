-- SPDX-License-Identifier: Apache-2.0
-- mh.export: programs of torch.export, which Python saved as .pt2, as modules of mh.nn.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local base = require "moonhalo.nn.module"

local fail = mh.fail
local export = {}
local kLoad = arguments.signature("export.load", {"path", arguments.optional "device"})

-- ---- Arguments and results ------------------------------------------------------------------------------------------

local kLists = {["builtins.tuple"] = true, ["builtins.list"] = true}
local kDicts = {["builtins.dict"] = true, ["collections.OrderedDict"] = true}

--- The specs of torch.utils._pytree, with the keys of dicts read: {kind = "leaf"|"list"|"dict", keys =, children =}.
local function read_spec(spec)
  local children = {}
  for i, child in ipairs(spec.children_spec) do children[i] = read_spec(child) end
  if kDicts[spec.type] then
    return {kind = "dict", keys = mh.json.decode(spec.context), children = children}
  elseif type(spec.type) == "string" then
    return {kind = "list", children = children, type = spec.type, known = kLists[spec.type]}
  end
  return {kind = "leaf"}
end

local function flatten(spec, value, where, found)
  if spec.kind == "leaf" then
    found.n = found.n + 1
    found[found.n] = value
    return
  end
  if type(value) ~= "table" or getmetatable(value) then
    fail(("%s is a %s of %d, got %s"):format(where, spec.kind, #spec.children, mh._describe(value)))
  end
  for i, child in ipairs(spec.children) do
    local key = spec.kind == "dict" and spec.keys[i] or i
    flatten(child, value[key], ("%s[%s]"):format(where, key), found)
  end
end

--- The value that begins at results[at], and where the next begins.
local function unflatten(spec, results, at)
  if spec.kind == "leaf" then return results[at], at + 1 end
  local value = {}
  for i, child in ipairs(spec.children) do
    local one
    one, at = unflatten(child, results, at)
    value[spec.kind == "dict" and spec.keys[i] or i] = one
  end
  return value, at
end

-- ---- Modules --------------------------------------------------------------------------------------------------------

--- A module inside of an exported program: it holds parameters and buffers, and is not called.
local ExportedPart = base.Module:extend("ExportedPart")
local known_classes = {}

local function refuse_hook(self, method)
  fail(("%s: %s: an exported program does not call its modules\n  fix   register it for the whole program, or load the "
    .. "model by mh.jit.load"):format(self:class_name(), method))
end
function ExportedPart:register_forward_hook() refuse_hook(self, "register_forward_hook") end
function ExportedPart:register_forward_pre_hook() refuse_hook(self, "register_forward_pre_hook") end
function ExportedPart:forward()
  fail(self:class_name()
    .. ": modules of an exported program are not called one by one, as a pipeline does\n"
    .. "  fix   call the whole program, or load the model by mh.jit.load")
end

local function part_class(name)
  known_classes[name] = known_classes[name] or ExportedPart:extend(name)
  return known_classes[name]
end

local ExportedProgram = base.Module:extend("ExportedProgram")

local function refuse_mode(self)
  fail(self:class_name() .. ": train, eval: an exported program keeps the mode in which Python exported it\n"
    .. "  fix   export it again, after net.train() or net.eval(), or load the model by mh.jit.load")
end
function ExportedProgram:train() refuse_mode(self) end
function ExportedProgram:eval() refuse_mode(self) end

--- The module under a dotted name, made if need be.
local function module_at(root, path, classes)
  local module, name = root, ""
  for part in path:gmatch("[^.]+") do
    name = name == "" and part or name .. "." .. part
    local children = rawget(module, "_modules")
    if children[part] == nil then children[part] = part_class(classes[name] or "Module")() end
    module = children[part]
  end
  return module
end

local function add_tensors(self, facts, classes)
  local made, links = {}, {}
  for i, entry in ipairs(facts.tensors) do
    local name, tensor, kind, persistent, key = table.unpack(entry)
    if kind ~= "constant" then
      local path, field = name:match("^(.*)%.([^.]+)$")
      local module = module_at(self, path or "", classes)
      field = field or name
      made[key] = made[key] or (kind == "parameter" and base.as_parameter(tensor)) or tensor
      local registry = rawget(module, kind == "parameter" and "_parameters" or "_buffers")
      registry[field] = made[key]
      rawget(module, "_known")[field] = true
      if not persistent then rawget(module, "_volatile")[field] = true end
      links[#links + 1] = {registry = registry, name = field, index = i, tensor = made[key]}
    end
  end
  return links
end

function ExportedProgram:init(program)
  local facts = program:describe()
  local classes = {}
  for _, entry in ipairs(facts.classes) do classes[entry[1]] = entry[2] end
  local input = read_spec(mh.json.decode(facts.input_spec)[2])
  rawset(self, "_program", program)
  rawset(self, "_output", read_spec(mh.json.decode(facts.output_spec)[2]))
  rawset(self, "_arguments", input.children[1])
  rawset(self, "_named", input.children[2])
  rawset(self, "_names", facts.input_names)
  local positional = {open = #input.children[2].children > 0}
  rawset(self, "_forward_names", table.move(facts.input_names, 1, #input.children[1].children, 1, positional))
  rawset(self, "_links", add_tensors(self, facts, classes))
  for _, entry in ipairs(facts.classes) do module_at(self, entry[1], classes) end
end

--- The arguments of a call in flat order: the positional ones, then those that Python exported by name, in a table at
--- the end.
local function flattened(self, ...)
  local given, wanted = table.pack(...), #self._arguments.children
  local by_name = #self._named.children > 0
  if given.n ~= wanted + (by_name and 1 or 0) then
    fail(("%s: forward takes %d arguments%s, got %d"):format(self:class_name(), wanted,
      by_name and " and a table of " .. table.concat(self._named.keys, ", ") or "", given.n))
  end
  local found = {n = 0}
  for i, spec in ipairs(self._arguments.children) do
    flatten(spec, given[i], ("forward: '%s'"):format(self._names[i] or i), found)
  end
  if by_name then flatten(self._named, given[given.n], "forward: the last table", found) end
  return found
end

function ExportedProgram:forward(...)
  for _, link in ipairs(self._links) do
    local tensor = rawget(link.registry, link.name)
    if not rawequal(tensor, link.tensor) then
      if tensor == nil then
        fail(("%s: '%s' was removed, the program needs it"):format(self:class_name(), link.name))
      end
      self._program:set(link.index, tensor)
      link.tensor = tensor
    end
  end
  local inputs = flattened(self, ...)
  local result = unflatten(self._output, self._program:run(inputs, inputs.n), 1)
  if self._output.known and type(result) == "table" then return table.unpack(result, 1, #self._output.children) end
  return result
end

--- mh.export.load(path, {device = nil}) -> Module
---   The program that Python saved by torch.export.save(torch.export.export(net, (x,)), path), as a module with the
---   parameters, buffers and names of the model. Its operators run one by one, so they work on ShardTensors, and have
---   gradients. A tuple that forward gives is several results; lists and dicts are tables.
---   In mh.deferred_init large tensors are deferred: each rank reads what it owns when they are distributed.
---   path        string      of a file that this rank sees; each rank reads it for itself
---   device      string?     where the tensors go; the device of the run unless given
---   returns     Module      its call refuses an input of a shape that the program was not exported for, and names
---                           the dim
---   collective  no
---   errors      ValueError: no program of torch.export in the file, or a damaged one
---               NotImplementedError: higher-order operators but cond and those of torch.no_grad
---   example
---     local ok, problem = pcall(mh.export.load, folder .. "/absent.pt2")
---     ok    --> false
function export.load(...)
  local given = arguments.read(kLoad, ...)
  local program = mh._load_exported(arguments.text("export.load", "path", given.path), given.device)
  local name = "ExportedProgram"
  for _, entry in ipairs(program:describe().classes) do
    if entry[1] == "" then name = entry[2] end
  end
  return ExportedProgram:extend(name)(program)
end

return export
