-- SPDX-License-Identifier: Apache-2.0
-- Modules made of modules.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local base = require "moonhalo.nn.module"
local sorted_keys = require "moonhalo.internal.sorted_keys"

local Module, is_module, fail = base.Module, base.is_module, mh.fail
local containers = {}

--- Returns what is at a position of `members`, whose names are "0", "1", ...; `list` is their module.
local function at_position(list, members, what, position)
  if type(position) ~= "number" then
    fail(("%s: the position is %s, expected an integer"):format(list:class_name(), mh._describe(position)))
  end
  local from_zero = position < 0 and position + #members or position
  local found = members[tostring(math.tointeger(from_zero) or from_zero)]
  if found == nil then
    fail(("%s: no %s %s in a list of %d\n" ..
      "  fix   positions count from 0; for i, %s in list:each() do visits all (ipairs begins at 1)"):format(
      list:class_name(), what, mh._describe(position), #members, what))
  end
  return found
end

--- A list of modules with names "0", "1", ...; `list[0]` is the first and `list[-1]` the last, as in PyTorch.
local List = Module:extend("List")

--- list:length() -> integer
--- dict:length() -> integer
---   The number of modules; #list is the same.
---   returns     integer     0 or more
---   collective  no
---   example
---     nn.ModuleList{nn.ReLU(), nn.ReLU()}:length()    --> 2
function List:length() return #self._modules end

--- list:at_position(position) -> Module
---   The module at a position; list[position] is the same.
---   position    integer     from 0; a negative one counts from the end
---   returns     Module      the module
---   collective  no
---   errors      ValueError: the list has no such position
---   example
---     nn.ModuleList{nn.ReLU(), nn.Tanh()}:at_position(-1):class_name()    --> Tanh
function List:at_position(position) return at_position(self, self._modules, "module", position) end

--- list:append(...) -> ModuleList
--- list:add(...) -> ModuleList
---   Adds one or more modules at the end.
---   returns     ModuleList  the list itself
---   collective  no
---   errors      ValueError: an argument is not a module
---   example
---     #nn.ModuleList():append(nn.ReLU(), nn.Tanh())    --> 2
function List:append(...)
  for i = 1, select("#", ...) do
    local module = select(i, ...)
    if not is_module(module) then
      fail(("%s: expected a module, got %s"):format(self:class_name(), mh._describe(module)))
    end
    self:register_module(tostring(#self._modules), module)
  end
  return self
end
List.add = List.append

--- list:extend_with(modules) -> ModuleList
---   Adds the modules of a list of Lua at the end.
---   modules     {Module}    what is added
---   returns     ModuleList  the list itself
---   collective  no
---   errors      ValueError: an element is not a module
---   example
---     #nn.ModuleList():extend_with{nn.ReLU(), nn.Tanh()}    --> 2
function List:extend_with(modules)
  arguments.list(self:class_name() .. ": extend_with", "a list of modules", modules)
  return self:append(table.unpack(modules))
end

local function add_all(self, first, ...)
  if type(first) == "table" and not is_module(first) then
    arguments.list(self:class_name(), "modules or a list of them", first)
    if select("#", ...) > 0 then
      fail(("%s: a list of modules and %s\n  fix   give one list, or modules alone"):format(self:class_name(),
          mh._describe((...))))
    end
    for i, module in ipairs(first) do
      if not is_module(module) then
        fail(("%s: element %d of the list is not a module but %s"):format(self:class_name(), i, mh._describe(module)))
      end
    end
    return self:append(table.unpack(first))
  end
  if first == nil and select("#", ...) == 0 then return self end
  for i = 1, select("#", first, ...) do
    local module = select(i, first, ...)
    if not is_module(module) then
      fail(("%s: argument %d is not a module but %s"):format(self:class_name(), i, mh._describe(module)))
    end
  end
  self:append(first, ...)
end

--- list:each() -> function
---   Goes through the modules in order: for i, module in list:each() do ... end, with i from 0.
---   returns     function    an iterator
---   collective  no
---   example
---     local list = nn.ModuleList{nn.ReLU(), nn.Tanh()}
---     for i, module in list:each() do print(i, module:class_name()) end    --> 0  ReLU | 1  Tanh
function List:each()
  local position = -1
  return function()
    position = position + 1
    local child = self._modules[tostring(position)]
    if child ~= nil then return position, child end
  end
end

--- mh.nn.Sequential(...) -> ModuleList
---   A module that calls modules one after another, each with the results of the one before. net[0] is the first.
---   returns     ModuleList  with the names "0", "1", ... in state_dict()
---   collective  its calls: as those of its modules
---   errors      ValueError: an argument is not a module
---   example
---     local net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
---     net(mh.ones{5, 3}).shape, #net    --> {5, 2}  3

containers.Sequential = List:extend("Sequential")
function containers.Sequential:init(...) add_all(self, ...) end
function containers.Sequential:forward(...)
  local values = table.pack(...)
  for _, module in self._modules do values = table.pack(module(table.unpack(values, 1, values.n))) end
  return table.unpack(values, 1, values.n)
end

--- mh.nn.ModuleList(...) -> ModuleList
---   A list of modules whose parameters belong to the module that has the list: nn.ModuleList(a, b), nn.ModuleList{a,
---   b}. list[0] is the first, list[-1] the last.
---   returns     ModuleList  it cannot be called itself
---   collective  no
---   errors      ValueError: an element is not a module
---   example
---     local list = nn.ModuleList{nn.Linear(2, 2), nn.Linear(2, 3)}
---     list[1](mh.ones{1, 2}).shape    --> {1, 3}

containers.ModuleList = List:extend("ModuleList")
function containers.ModuleList:init(...) add_all(self, ...) end
function containers.ModuleList:forward() fail("ModuleList: it is a list, call its modules") end

--- mh.nn.ModuleDict(modules = nil) -> ModuleDict
---   Modules by name, whose parameters belong to the module that has the table: nn.ModuleDict{encoder = a, decoder =
---   b}. dict.name = module adds one. Names that are given together are sorted.
---   modules     table?      modules by name
---   returns     ModuleDict  it cannot be called itself
---   collective  no
---   errors      ValueError: an entry is not a module, or a name of a method
---   example
---     local dict = nn.ModuleDict{b = nn.Linear(2, 2), a = nn.ReLU()}
---     dict:keys()    --> {"a", "b"}

--- Modules by name, `nn.ModuleDict{encoder = a, decoder = b}` (names are sorted) or added one by one, `dict.name = m`.
containers.ModuleDict = Module:extend("ModuleDict")
--- dict:init(modules = nil) -> nothing
---   What nn.ModuleDict(modules) does with its argument.
---   modules     table?      modules by name
---   returns     nothing
---   collective  no
---   errors      ValueError: an entry is not a module
---   example
---     #nn.ModuleDict{a = nn.ReLU()}:keys()    --> 1
function containers.ModuleDict:init(modules)
  if modules ~= nil and (type(modules) ~= "table" or getmetatable(modules)) then
    fail(("ModuleDict: expected modules by name, got %s"):format(mh._describe(modules)))
  end
  for _, name in ipairs(sorted_keys(modules or {})) do self:register_module(name, modules[name]) end
end
function containers.ModuleDict:length() return #self._modules end
--- dict:keys() -> {string}
---   The names of the modules, in the order in which they were added.
---   returns     {string}    the same on all ranks
---   collective  no
---   example
---     nn.ModuleDict{a = nn.ReLU()}:keys()    --> {"a"}
function containers.ModuleDict:keys()
  local names = {}
  for name in self._modules do names[#names + 1] = name end
  return names
end
--- dict:forward() -> nothing
---   Always an error: call the modules of the table.
---   returns     nothing
---   collective  no
---   errors      ValueError: always
---   example
---     (pcall(nn.ModuleDict{a = nn.ReLU()}))    --> false
function containers.ModuleDict:forward(...) fail("ModuleDict: it is a table, call its modules") end

-- ---- Parameters ---------------------------------------------------------------------------------------------------

local function add_parameter(self, name, tensor)
  if not mh.is_tensor(tensor) then
    fail(("%s: '%s' is not a tensor but %s"):format(self:class_name(), name, mh._describe(tensor)))
  end
  self:register_parameter(name, base.is_parameter(tensor) and tensor or base.Parameter(tensor))
end

local function extra_repr(self)
  local lines = {}
  for name, tensor in self._parameters do
    lines[#lines + 1] = ("(%s): Parameter of %s [%s]"):format(name, tensor.dtype, table.concat(tensor.shape, ", "))
  end
  return table.concat(lines, "\n  ")
end

--- mh.nn.ParameterList(parameters = nil) -> Module
---   Parameters in a list, which belong to the module that has it. list[0] is the first, list[-1] the last, #list their
---   number; list:append(tensor) adds one. Tensors that are not parameters become such.
---   parameters   {Tensor}?   the first ones
---   returns     Module      with the names "0", "1", ... in state_dict(); it cannot be called itself
---   collective  no
---   errors      ValueError: an element is not a tensor
---   example
---     local list = nn.ParameterList{mh.ones{2}, mh.ones{3}}
---     list[1].shape, #list, #list:parameters()    --> {3}  2  2

containers.ParameterList = Module:extend("ParameterList")
function containers.ParameterList:init(parameters)
  if parameters ~= nil then arguments.list("ParameterList", "a list of parameters", parameters) end
  for _, one in ipairs(parameters or {}) do self:append(one) end
end
function containers.ParameterList:append(tensor)
  add_parameter(self, tostring(#self._parameters), tensor)
  return self
end
function containers.ParameterList:length() return #self._parameters end
function containers.ParameterList:at_position(position)
  return at_position(self, self._parameters, "parameter", position)
end
function containers.ParameterList:each()
  local position = -1
  return function()
    position = position + 1
    local found = self._parameters[tostring(position)]
    if found ~= nil then return position, found end
  end
end
function containers.ParameterList:forward(...) fail("ParameterList: it is a list and cannot be called") end
containers.ParameterList.extra_repr = extra_repr

--- mh.nn.ParameterDict(parameters = nil) -> Module
---   Parameters by name, which belong to the module that has the table. dict.name is one of them, dict.name =
---   nn.Parameter(x) adds one, dict:keys() are the names. Names that are given together are sorted.
---   parameters   table?     tensors by name; those that are not parameters become such
---   returns     Module      it cannot be called itself
---   collective  no
---   errors      ValueError: an entry is not a tensor, or a name of a method
---   example
---     local dict = nn.ParameterDict{scale = mh.ones{2}, offset = mh.zeros{2}}
---     dict:keys(), dict.scale.requires_grad    --> {"offset", "scale"}  true

containers.ParameterDict = Module:extend("ParameterDict")
function containers.ParameterDict:init(parameters)
  if parameters ~= nil and (type(parameters) ~= "table" or getmetatable(parameters)) then
    fail("ParameterDict: expected parameters by name, got " .. mh._describe(parameters))
  end
  for _, name in ipairs(sorted_keys(parameters or {})) do add_parameter(self, name, parameters[name]) end
end
function containers.ParameterDict:length() return #self._parameters end
function containers.ParameterDict:keys()
  local names = {}
  for name in self._parameters do names[#names + 1] = name end
  return names
end
function containers.ParameterDict:forward(...) fail("ParameterDict: it is a table and cannot be called") end
containers.ParameterDict.extra_repr = extra_repr

return containers
