-- SPDX-License-Identifier: Apache-2.0
-- Modules made of modules.

local mh = require "moonhalo"
local base = require "moonhalo.nn.module"
local sorted_keys = require "moonhalo.internal.sorted_keys"

local Module, is_module, fail = base.Module, base.is_module, mh.fail
local containers = {}

--- A list of modules with names "0", "1", ...; `list[0]` is the first and `list[-1]` the last, as in PyTorch.
local List = Module:extend("List")

function List:length() return #self._modules end

--- The module at a position that counts from 0, or from the end when negative.
function List:at_position(position)
  if type(position) ~= "number" then
    fail(("%s: the position is %s, wanted a whole number"):format(self:class_name(), mh._describe(position)))
  end
  local count = #self._modules
  local from_zero = position < 0 and position + count or position
  local child = self._modules[tostring(math.tointeger(from_zero) or from_zero)]
  if child == nil then
    fail(("%s: no module %s in a list of %d\n" ..
      "  fix   positions count from 0; for i, module in list:each() do visits all (ipairs begins at 1)"):format(
      self:class_name(), mh._describe(position), count))
  end
  return child
end

--- Adds one or more modules at the end; returns the list.
function List:append(...)
  for _, module in ipairs {...} do
    if not is_module(module) then
      fail(("%s: wanted a module, got %s"):format(self:class_name(), mh._describe(module)))
    end
    self:register_module(tostring(#self._modules), module)
  end
  return self
end
List.add = List.append

function List:extend_with(modules)
  if type(modules) ~= "table" or getmetatable(modules) then
    fail(("%s: extend_with: wanted a list of modules, got %s"):format(self:class_name(), mh._describe(modules)))
  end
  return self:append(table.unpack(modules))
end

local function add_all(self, first, ...)
  if type(first) == "table" and not is_module(first) then
    for i, module in ipairs(first) do
      if not is_module(module) then
        fail(("%s: element %d of the list is no module but %s"):format(self:class_name(), i, mh._describe(module)))
      end
    end
    return self:append(table.unpack(first))
  end
  for i = 1, select("#", first, ...) do
    local module = select(i, first, ...)
    if not is_module(module) and not (i == 1 and module == nil) then
      fail(("%s: argument %d is no module but %s"):format(self:class_name(), i, mh._describe(module)))
    end
  end
  self:append(first, ...)
end

--- `for i, module in list:each() do` walks in order with positions from 0.
function List:each()
  local position = -1
  return function()
    position = position + 1
    local child = self._modules[tostring(position)]
    if child ~= nil then return position, child end
  end
end

containers.Sequential = List:extend("Sequential")
function containers.Sequential:init(...) add_all(self, ...) end
function containers.Sequential:forward(...)
  local values = table.pack(...)
  for _, module in self._modules do values = table.pack(module(table.unpack(values, 1, values.n))) end
  return table.unpack(values, 1, values.n)
end

containers.ModuleList = List:extend("ModuleList")
function containers.ModuleList:init(...) add_all(self, ...) end
function containers.ModuleList:forward() fail("ModuleList: it is a list, call its modules") end

--- Modules by name, `nn.ModuleDict{encoder = a, decoder = b}` (names are sorted) or added one by one, `dict.name = m`.
containers.ModuleDict = Module:extend("ModuleDict")
function containers.ModuleDict:init(modules)
  if modules ~= nil and (type(modules) ~= "table" or getmetatable(modules)) then
    fail(("ModuleDict: wanted modules by name, got %s"):format(mh._describe(modules)))
  end
  for _, name in ipairs(sorted_keys(modules or {})) do self:register_module(name, modules[name]) end
end
function containers.ModuleDict:length() return #self._modules end
function containers.ModuleDict:keys()
  local names = {}
  for name in self._modules do names[#names + 1] = name end
  return names
end
function containers.ModuleDict:forward() fail("ModuleDict: it is a table, call its modules") end

return containers
