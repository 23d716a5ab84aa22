-- SPDX-License-Identifier: Apache-2.0
-- The reference has an entry for every public name of Lua, and entries agree with the program: the names exist, and
-- arguments and defaults are those that calls are read by.
local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local public_functions = require "support.public_functions"
local reference = require "support.reference"
local table_text = require "moonhalo.internal.table_text"
local wrong_values = require "support.wrong_values"

--- Operators of LibTorch are documented by their schemas. Their functions have one of these as an upvalue.
local function is_operator(fn)
  if type(fn) ~= "function" or debug.getinfo(fn, "S").what ~= "C" then return false end
  local _, value = debug.getupvalue(fn, 1)
  return type(value) == "userdata"
end

--- The names of mh.functional and mh.optim.lr_scheduler are also in mh and mh.optim; those of mh.nn.Module are methods.
local function canonical(name)
  name = name:gsub("^mh%.nn%.Module%.", "Module:"):gsub("^mh%.optim%.lr_scheduler%.", "mh.optim.")
  name = name:gsub("^v?rmse:", "Metric:"):gsub("^DistributedSampler:", "Sampler:")
  name = name:gsub("^StepLR:", "Scheduler:"):gsub("^SequentialLR:", "Scheduler:")
  name = name:gsub("^ReduceLROnPlateau:", "Scheduler:")
  local short = name:match("^mh%.functional%.(.*)$")
  return short and rawget(mh, short) == mh.functional[short] and "mh." .. short or name
end

--- Methods of objects of Lua, which are in their class and in what that inherits from.
local function add_methods(found, kind, object)
  local class = assert(getmetatable(object).__class, kind .. " has no table of methods")
  while class do
    for key, method in pairs(class) do
      if key:sub(1, 1) ~= "_" and type(method) == "function" then found[kind .. ":" .. key] = true end
    end
    local meta = getmetatable(class)
    class = meta and type(meta.__index) == "table" and meta.__index
  end
end

--- Attributes of objects of C++ are an upvalue of their __index.
local function add_attributes(found, kind, object, upvalue)
  local _, getters = debug.getupvalue(getmetatable(object).__index, upvalue)
  for name in pairs(getters) do
    if name:sub(1, 1) ~= "_" then found[kind .. "." .. name] = true end
  end
end

--- Fields of objects of Lua that users read; the others are the objects' own.
local kFields = {
  Collection = {"calendar", "dates", "fields", "gaps", "layout", "steps", "times"},
  Windows = {"dropped", "inputs", "targets"},
  Loader = {"epoch"},
  Pipeline = {"mesh", "stages"},
  Run = {"ended_by", "epoch", "folder", "name", "resumed", "step"},
  Statistics = {"fields"},
}

--- Reading a field that an object's class does not have is an error.
local function add_fields(found, kind, object)
  for _, name in ipairs(kFields[kind]) do
    local _ = object[name]
    found[kind .. "." .. name] = true
  end
end

local function public_names()
  local found = {}
  for _, one in ipairs(public_functions()) do
    local fn = one.fn
    if one.name:find("^Tensor:") then fn = mh.Tensor[one.name:match(":(.*)$")] end
    if not is_operator(fn) then found[canonical(one.name)] = true end
  end
  local paths = {require("support.data_files").cf("reference.nc", 0, 12)}
  local data = mh.data.open(paths)
  local windows = data:windows{inputs = {fields = {"t2m"}, steps = {0}}}
  add_methods(found, "Collection", data)
  add_methods(found, "Windows", windows)
  local loader = windows:loader{batch = 2}
  add_methods(found, "Loader", loader)
  add_fields(found, "Collection", data)
  add_fields(found, "Windows", windows)
  add_fields(found, "Loader", loader)
  add_fields(found, "Statistics", windows:statistics{})
  local blocks = mh.distribute_tensor(mh.ones({4}, {device = "cpu"}), mh.init_device_mesh("cpu", {1}, {"a"}),
      {mh.Shard(0)})
  add_methods(found, "Balance", mh.balance{mesh = blocks.mesh, cut = {x = "a"}, moves = {x = blocks}})
  add_methods(found, "Sampler", mh.data.Sampler(10))
  add_methods(found, "Sampler", mh.data.DistributedSampler(10))
  add_methods(found, "Scheduler", mh.optim.StepLR(wrong_values.optimizer(), 1))
  local run = mh.run{folder = require("support.own_path")("runs")}
  add_methods(found, "Run", run)
  add_fields(found, "Run", run)
  run:finish()
  add_fields(found, "Pipeline", mh.pipeline(wrong_values.net(), mh.init_device_mesh("cpu", {1}, {"pp"}), 1))
  add_attributes(found, "Tensor", wrong_values.x(), 1)
  add_attributes(found, "DeviceMesh", wrong_values.mesh(), 2)
  add_attributes(found, "Placement", mh.Shard(0), 2)
  add_attributes(found, "Optimizer", wrong_values.optimizer(), 2)
  local file <close> = mh.h5.open(paths[1])
  add_attributes(found, "File", file, 2)
  add_attributes(found, "Dataset", file[file:datasets()[1]], 2)
  add_attributes(found, "Selection", file[file:datasets()[1]]["0"], 2)
  return found
end

local function sorted(names)
  local list = {}
  for name in pairs(names) do list[#list + 1] = name end
  table.sort(list)
  return list
end

local function fail_if_any(wrong)
  if #wrong > 0 then error(table.concat(wrong, "\n"), 0) end
end

--- name -> signature of whole entries; C and Fortran aside.
local function signatures()
  local found = {}
  for _, entry in ipairs(reference.entries()) do
    for _, signature in ipairs(entry.whole and entry.signatures or {}) do
      if not signature.name:find("^C%.") and not signature.name:find("^Fortran%.") then
        found[signature.name] = signature
      end
    end
  end
  return found
end

local tests = {}

function tests.test_Y09_every_public_name_has_an_entry()
  local entries, public = signatures(), public_names()
  local wrong = {}
  for _, name in ipairs(sorted(public)) do
    if not entries[name] then wrong[#wrong + 1] = name .. " has no entry in the reference (docs/tools/README.md)" end
  end
  fail_if_any(wrong)
end

--- Classes of objects that only calls make: their names are not looked up.
local kMade = {PendingTensor = true, Scheduler = true, Statistics = true, Profiler = true,
  Selection = true, Distribution = true}

function tests.test_Y09_names_of_entries_exist()
  local public, wrong = public_names(), {}
  for _, name in ipairs(sorted(signatures())) do
    local value = mh
    if name:find("^mh%.") then
      for part in name:sub(4):gmatch("[^.]+") do
        local ok, found = pcall(function() return value[part] end)
        value = ok and found or nil
        if value == nil then break end
      end
      if value == nil then wrong[#wrong + 1] = name .. " has an entry, but does not exist" end
    elseif not public[name] and not kMade[name:match("^%w+")] then
      wrong[#wrong + 1] = name .. " has an entry, but does not exist"
    end
  end
  fail_if_any(wrong)
end

local function same_default(text, value)
  if text == nil or text == "nil" then return value == nil end
  local read = load("return " .. text, "=default", "t", {})
  if not read then return false end
  local given = read()
  if type(given) == "table" and type(value) == "table" then return table_text(given) == table_text(value) end
  return given == value
end

function tests.test_Y09_arguments_and_defaults_are_those_of_the_program()
  public_names()  -- loads all files
  local wrong, compared = {}, 0
  for name, signature in pairs(signatures()) do
    local op = name:match("^mh%.nn%.(%u%w*)$") or name:match("^mh%.optim%.(%w+)$") or name:match("^mh%.([%w_]+)$")
    local real = op and arguments.signatures[op]
    if real then
      compared = compared + 1
      local names, defaults = {}, {}
      for _, part in ipairs {signature.positional, signature.options} do
        for _, argument in ipairs(part) do
          names[#names + 1] = argument.name
          defaults[argument.name] = argument.default
        end
      end
      if table.concat(names, ", ") ~= table.concat(real.names, ", ") then
        wrong[#wrong + 1] = ("%s: the entry has (%s), the program (%s)"):format(name, table.concat(names, ", "),
          table.concat(real.names, ", "))
      end
      for _, argument in ipairs(names) do
        if not same_default(defaults[argument], real.default[argument]) then
          wrong[#wrong + 1] = ("%s: the default of '%s' is %s, the entry says %s"):format(name, argument,
            mh._describe(real.default[argument]), tostring(defaults[argument]))
        end
      end
    end
  end
  fail_if_any(wrong)
end

return tests
