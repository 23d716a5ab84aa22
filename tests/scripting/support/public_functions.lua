-- SPDX-License-Identifier: Apache-2.0
-- All functions that scripts can call, found in the tables themselves: {name, fn} or {name, fn, make}, where make()
-- gives the object of a method. Names are as in a script, "mh.nn.Linear" and "Optimizer:step"; those with a leading _
-- are not public.
local mh = require "moonhalo"
local own_path = require "support.own_path"
local wrong = require "support.wrong_values"

local found = {}

local function callable(value)
  if type(value) == "function" then return true end
  local meta = type(value) == "table" and getmetatable(value)
  return meta and meta.__call ~= nil
end

local function public_names(fields)
  local names = {}
  for name in rawpairs(fields) do
    if type(name) == "string" and name:sub(1, 1) ~= "_" then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

--- The functions of a table and of the tables in it. Classes of modules are functions, their methods are methods.
local function add_table(prefix, fields, seen)
  if seen[fields] then return end
  seen[fields] = true
  for _, name in ipairs(public_names(fields)) do
    local value = rawget(fields, name)
    local is_class = callable(value) and type(value) == "table" and prefix:find("^mh%.nn%.")
    if callable(value) then found[#found + 1] = {name = prefix .. name, fn = value} end
    if type(value) == "table" and not is_class then add_table(prefix .. name .. ".", value, seen) end
  end
end

--- The methods in the tables `classes`, of the objects that `make` gives.
local function add_methods(kind, make, ...)
  for _, class in ipairs {...} do
    for _, name in ipairs(public_names(class)) do
      if callable(rawget(class, name)) then found[#found + 1] = {name = kind .. ":" .. name, make = make} end
    end
  end
end

--- The methods of an object of C++ are an upvalue of its __index, and so are those of tensors.
local function add_object(kind, make, upvalue)
  local _, methods = debug.getupvalue(getmetatable(make()).__index, upvalue or 1)
  add_methods(kind, make, methods)
end

--- An object of Lua: the functions of its class, and of what that inherits from.
local function add_lua_object(kind, make)
  local class = getmetatable(make()).__class
  while class do
    add_methods(kind, make, class)
    local meta = getmetatable(class)
    class = meta and meta.__index
  end
end

local function once(make)
  local made
  return function()
    made = made or make()
    return made
  end
end

local function add_files()
  local path, count = own_path("wrong_calls.h5"), 0
  local file <close> = mh.h5.open(path, "w")
  file:write("x", wrong.x())
  file:close()
  local reading = once(function() return mh.h5.open(path) end)
  add_object("File", function() return mh.h5.open(path) end)
  add_object("File", function()
    count = count + 1
    return mh.h5.open(own_path("wrong_calls_" .. count .. ".h5"), "w")
  end)
  add_object("Dataset", function() return reading().x end)
  add_object("Selection", function() return reading().x["0"] end)
end

local function add_data()
  local paths = {require("support.data_files").cf("wrong_calls.nc", 0, 12)}
  local collection = once(function() return mh.data.open(paths) end)
  local windows = once(function() return collection():windows{inputs = {fields = {"t2m"}, steps = {0}}} end)
  add_lua_object("Collection", collection)
  add_lua_object("Windows", windows)
  add_lua_object("Loader", function() return windows():loader{batch = 2} end)
  add_lua_object("Sampler", function() return mh.data.Sampler(10) end)
  add_lua_object("DistributedSampler", function() return mh.data.DistributedSampler(10) end)
end

local function add_training()
  local optimizer = wrong.optimizer
  add_object("Optimizer", optimizer)
  add_object("ParamGroup", function() return optimizer().param_groups[1] end)
  add_lua_object("StepLR", function() return mh.optim.StepLR(optimizer(), 1) end)
  add_lua_object("SequentialLR", function()
    local opt = optimizer()
    return mh.optim.SequentialLR(opt, {mh.optim.StepLR(opt, 1), mh.optim.LinearLR(opt)}, {2})
  end)
  add_lua_object("ReduceLROnPlateau", function() return mh.optim.ReduceLROnPlateau(optimizer()) end)
  for _, kind in ipairs {"rmse", "vrmse"} do
    add_lua_object(kind, function() return mh.metrics[kind]{} end)
  end
  add_lua_object("EMA", function() return mh.EMA(wrong.net()) end)
  add_lua_object("Pipeline", function()
    return mh.pipeline(wrong.net(), mh.init_device_mesh(mh.device(), {1}, {"pp"}), 1)
  end)
end

local function add_modules()
  local List = getmetatable(mh.nn.ModuleList).__index
  add_methods("Module", wrong.net, mh.nn.Module)
  add_methods("ModuleList", function() return mh.nn.ModuleList(wrong.net()) end, List)
  add_methods("ModuleDict", function() return mh.nn.ModuleDict{a = wrong.net()} end, mh.nn.ModuleDict)
end

--- Operators, of which `mh` has those that were asked for.
local kOperators = {"relu", "softmax", "matmul", "conv2d", "cat", "stack", "where", "zeros", "ones", "arange",
  "linspace", "randn",
  "sum", "mean", "max", "topk", "sort", "gather", "index_select", "einsum", "fft_rfft", "layer_norm", "embedding",
  "cumsum", "pad",
  "reshape", "permute", "transpose", "clamp", "norm", "eye", "full", "split", "chunk", "roll", "flip", "tril",
    "one_hot"}

return function()
  for path in io.popen("ls scripting/lua/*.lua"):lines() do local _ = mh[path:match("([%w_]+)%.lua$")] end
  for _, name in ipairs(kOperators) do local _ = mh[name] end
  add_table("mh.", mh, {[mh.Tensor] = true})
  add_object("Tensor", wrong.x, 2)
  add_object("DeviceMesh", wrong.mesh)
  add_object("Placement", function() return mh.Shard(0) end)
  add_object("Generator", function() return mh.Generator() end)
  add_object("ParallelPlan", function() return mh.plan.new{} end)
  add_object("Canvas", function() return mh.canvas(20, 20, "#ffffff") end)
  add_modules()
  add_training()
  add_files()
  add_data()
  return found
end
