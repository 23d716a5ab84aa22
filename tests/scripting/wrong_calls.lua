-- SPDX-License-Identifier: Apache-2.0
-- Every public function with wrong arguments: of a wrong type, missing, nil, NaN, negative, too many, empty tables,
-- unknown options, alone and behind a first argument that many functions take. What is refused is refused in words for
-- the caller: the script's line, the name of the function or of its object, no inner parts of Lua, of C++ or of
-- LibTorch, no addresses, which ranks do not share. A crash or a hang ends the test. With MOONHALO_LIST_CALLS=1 it
-- prints the calls that are taken.
local mh = require "moonhalo"
local public_functions = require "support.public_functions"
local wrong = require "support.wrong_values"

local tests = {}

--- Patterns that no message has.
local kInternals = {"attempt to ", "bad argument #%d+ to ", "upvalue '", "local '", "Exception raised from",
  "%f[%w]moonhalo%.[%w_.]+:%d+",
  "c10::", "C10_", "at::", "std::", "torch::", "TORCH_", "ATen", "vector::", "basic_string", "sto[iuld]+:", "map::at",
  "bad_alloc", "bad_cast",
  "expected Tensor as element", "INTERNAL ASSERT", "report a bug", "IValue", "nullptr", "<class", "0x%x%x%x",
  "%(null%)", "%f[%a]userdata", "stack traceback", "%.cpp:%d", "%.h:%d"}

--- Parts of schemas, which the messages of operators show on purpose, and no others.
local kSchemas = {"aten::", "ScalarType", "SymInt"}

--- Messages that do without the function's name. {function, how the message begins, why it will do}
local kUnnamed = {
  {"^mh%.Partial$", "reduce op: ", "names what is wrong, and all names that are right"},
  {"^mh%.as_tensor$", "tensor: ", "the same as of mh.tensor"},
  {"^mh%.asarray$", "tensor: ", "the same as of mh.tensor"},
  {"^Tensor:new_tensor$", "tensor: ", "the same as of mh.tensor"},
  {"^mh%.make_optimizer$", "optim: no optimizer ", "it makes all of mh.optim"},
  {"^mh%.json%.", "json: ", "the table's name, and what is wrong with the text or the value"},
  {"^mh%.safetensors%.", "safetensors: ", "the table's name, and the path"},
  {"^DeviceMesh:", "mesh%(", "which mesh it is says more"},
  {"^Optimizer:", "SGD: ", "the optimizer's name"},
  {"^Module:", "Sequential: ", "the module's class"},
  {"^mh%.nn%.Module%.", "Sequential: ", "the module's class"},
  {"^mh%.load_merged_state_dict$", "Sequential: load_state_dict: ", "it loads into the module by that"},
  {"^mh%.nn%.init%.", "uniform_: ", "the numbers that it draws"},
  {"^mh%.nn%.init%.", "normal_: ", "the numbers that it draws"},
  {"^mh%.optim%.", "SGD: option 'lr' ", "the rate that the schedule gave"},
  {"^mh%.files%.read_npy$", "open: file ", "which file, as of all readers"},
  {"^Windows:statistics$", "make_folder: ", "the folder of the path that was given"},
  {"^Optimizer:clip_gnorm$", "clip_grad_norm: ", "the same as of mh.clip_grad_norm"},
  {"^Windows:", "windows: ", "the object's class"},
  {"^Loader:", "loader: ", "the object's class"},
  {"^ModuleList:", "ModuleList: ", "the module's class"},
  {"^ModuleDict:", "ModuleDict: ", "the module's class"},
  {"^DistributedSampler:", "DistributedSampler: ", "the object's class"},
}

--- Not called: {function, why}
local kLeftOut = {
  {"^mh%.run$", "makes folders; program/test_runs.cpp has its wrong calls"},
  {"^mh%.profile$", "writes files when an optimizer steps; profile_ranks3.lua has its wrong calls"},
  {"^mh%.fail$", "raises what it is given"},
  {"^Collection:[fjld]", "field, join, locate and description are for Moonhalo's own files"},
  {"^Collection:time_text$", "for Moonhalo's own files"},
  {"^Windows:over$", "for Moonhalo's own files"},
}

local function matches(list, name)
  for _, entry in ipairs(list) do
    if name:find(entry[1]) then return entry end
  end
end

--- A function that calls the one under test as a script does, by its name, so that errors see that name.
local function caller(one)
  local name = one.name:match("[%w_]+$")
  local keyword = name == "repeat" or name == "and" or name == "or" or name == "not"
  local call = "mh" .. one.name:gsub("^mh", ""):gsub("%.([%w_]+)", function(part) return ("[%q]"):format(part) end)
  if one.make then
    call = keyword and ("self[%q](self, ...)"):format(name) or "self:" .. name .. "(...)"
  else
    call = (one.name:gsub("^mh%.", "mh.")) .. "(...)"
  end
  local text = "local mh = require 'moonhalo' return function(self, ...) local results = table.pack(" .. call
      .. ") return results end"
  return assert(load(text, "@call.lua"))()
end

--- Says why a message will not do; nil if it will.
local function problem_of(one, message)
  if type(message) ~= "string" then return "no text" end
  local position = message:find("call.lua:1: ", 1, true)
  if not position then return "without the script's line" end
  local text = message:sub(position + #"call.lua:1: ")
  local name = one.name:match("[%w_]+$")
  for _, pattern in ipairs(kInternals) do
    if text:find(pattern) then return "inner parts: " .. pattern end
  end
  if text:find("\n  in    ", 1, true) then return nil end  -- from the forward function of a module that was passed
  local of_operator = text:find(name .. ": no overload fits", 1, true) or text:find("\n  call  ", 1, true)
  for _, pattern in ipairs(of_operator and {} or kSchemas) do
    if text:find(pattern, 1, true) then return "another function's schema" end
  end
  if text:find((name:gsub("_$", "")), 1, true) then return nil end
  for _, entry in ipairs(kUnnamed) do
    if one.name:find(entry[1]) and text:find("^" .. entry[2]) then return nil end
  end
  return "without the function's name"
end

--- Settings of the run that calls may change.
local function reset()
  mh.set_default_dtype("float32")
  mh.set_grad_enabled(true)
  mh.set_num_threads(1)
  mh.detect_nan(false)
  mh.use_deterministic(false)
end

local function new_session()
  local session = {calls = 0, taken = {}, unclear = {}}
  --- Calls `one` with what the entries of `arguments` make.
  function session.try(one, arguments)
    local given, labels = {}, {}
    for i, argument in ipairs(arguments) do given[i], labels[i] = argument[2](), argument[1] end
    local call = ("%s(%s)"):format(one.name, table.concat(labels, ", "))
    session.calls = session.calls + 1
    local ok, message = pcall(one.call, one.make and one.make() or nil, table.unpack(given, 1, #arguments))
    if ok then
      session.taken[#session.taken + 1] = call
      return
    end
    local problem = problem_of(one, message)
    if problem then
      session.unclear[#session.unclear + 1] = ("%s: %s\n      %s"):format(call, problem,
          tostring(message):gsub("\n", "\n      "))
    end
  end
  return session
end

local function try_all(session, one)
  local values = wrong.values
  session.try(one, {})
  for _, value in ipairs(values) do session.try(one, {value}) end
  local many = {}
  for i = 1, 12 do many[i] = values[2] end
  session.try(one, many)
  if one.name:find("^File:") then return end  -- each call opens a file
  for _, first in ipairs(wrong.firsts) do
    for _, value in ipairs(values) do
      if not value.alone then session.try(one, {first, value}) end
    end
  end
end

--- Weights of a million elements or more are not drawn, since no message depends on them: nn.Transformer() draws 44
--- million numbers.
local function leave_large_weights_unfilled()
  local text = [[
    local fill, is_tensor = ...
    return function(tensor, ...)
      if is_tensor(tensor) and tensor:numel() >= 1000000 then return tensor end
      return fill(tensor, ...)
    end
  ]]
  for _, name in ipairs {"uniform_", "normal_"} do
    local make = load(text, "=moonhalo.nn.init")  -- so that no line of a script is in it
    mh.nn.init[name] = make(mh.nn.init[name], mh.is_tensor)
  end
end

function tests.test_wrong_calls_are_refused_in_words_for_the_caller()
  leave_large_weights_unfilled()
  local session, functions = new_session(), public_functions()
  for _, one in ipairs(functions) do
    if not matches(kLeftOut, one.name) then
      one.call = caller(one)
      try_all(session, one)
      reset()
    end
  end
  if os.getenv("MOONHALO_LIST_CALLS") then
    for _, call in ipairs(session.taken) do print("taken  " .. call) end
  end
  print(("%d functions, %d calls, %d taken, %d unclear"):format(#functions, session.calls, #session.taken,
      #session.unclear))
  assert(#functions > 500 and session.calls > 20000, "the tables were not found")
  if #session.unclear == 0 then return end
  local shown = table.concat(session.unclear, "\n  ", 1, math.min(#session.unclear,
      tonumber(os.getenv("MOONHALO_SHOW_CALLS")) or 20))
  error(("%d of %d wrong calls have an unclear error\n  %s"):format(#session.unclear, session.calls, shown), 0)
end

return tests
