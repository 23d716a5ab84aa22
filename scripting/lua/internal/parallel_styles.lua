-- SPDX-License-Identifier: Apache-2.0
-- Parallel styles with PyTorch's names and options, and the way from a plan in Lua to a plan of the engine. A style is
-- any table with `apply(self, module, mesh)`; the ones here hold options alone and keep nothing that another could see.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"

local fail, optional = mh.fail, arguments.optional
local styles = {classes = {}}

local builtin_styles = require("moonhalo.internal.registries").builtin_styles

local function define(name, ...)
  local entries = {...}
  for i, entry in ipairs(entries) do
    if type(entry) == "string" then entries[i] = optional(entry) end
  end
  local signature = arguments.signature(name, entries)
  local meta = {__name = name, __index = {style = name}}
  --- Divides one module.
  function meta.__index:apply(module, mesh) return mh.parallelize_module(module, mesh, self) end
  function meta.__tostring(self)
    local shown = {}
    for _, key in ipairs(signature.names) do
      local value = self[key]
      if type(value) == "table" then
        local parts = {}
        for one, placement in pairs(value) do
          parts[#parts + 1] = (math.type(one) and "" or one .. " = ") .. tostring(placement)
        end
        value = "{" .. table.concat(parts, ", ") .. "}"
      end
      if value ~= nil then shown[#shown + 1] = key .. " = " .. tostring(value) end
    end
    return name .. "(" .. table.concat(shown, ", ") .. ")"
  end
  styles.classes[name] = function(...)
    local style = setmetatable(arguments.read(signature, ...), meta)
    builtin_styles[style] = true
    return style
  end
end

--- mh.ColwiseParallel({input_layouts = nil, output_layouts = nil, use_local_output = nil}) -> Style
---   A style of mh.parallelize_module: a Linear is cut along its outputs, an Embedding along its vectors. A
---   RowwiseParallel Linear usually follows.
---   input_layouts   Placement?   how the input is placed; nil for mh.Replicate()
---   output_layouts   Placement?   how the result is placed; nil for mh.Shard(-1)
---   use_local_output   boolean?   nil or true: the result is this rank's block, a plain tensor
---   returns     Style       an entry of a plan
---   collective  no
---   example
---     local net = mh.parallelize_module(nn.Linear(4, 6), mesh, mh.ColwiseParallel())
---     net.weight.placements[1].dim, net.bias.placements[1].dim    --> 0  0
define("ColwiseParallel", "input_layouts", "output_layouts", "use_local_output")
--- mh.RowwiseParallel({input_layouts = nil, output_layouts = nil, use_local_output = nil}) -> Style
---   A style of mh.parallelize_module: a Linear is cut along its inputs, an Embedding along its rows. The partial
---   results of the ranks are added.
---   input_layouts   Placement?   how the input is placed; nil for mh.Shard(-1)
---   output_layouts   Placement?   how the result is placed; nil for mh.Replicate()
---   use_local_output   boolean?   nil or true: the result is this rank's block, a plain tensor
---   returns     Style       an entry of a plan
---   collective  no
---   example
---     local net = mh.parallelize_module(nn.Linear(6, 4), mesh, {[""] = mh.RowwiseParallel()})
---     net.weight.placements[1].dim, net.bias.placements[1]:is_replicate()    --> 1  true
define("RowwiseParallel", "input_layouts", "output_layouts", "use_local_output")
--- mh.PairwiseParallel({input_layouts = nil, output_layouts = nil, use_local_output = nil}) -> Style
---   A style of mh.parallelize_module for a module with Linears in pairs: the first of each pair is cut along its
---   outputs, the second along its inputs, so that they communicate once.
---   input_layouts   Placement?   how the input is placed; nil for mh.Replicate()
---   output_layouts   Placement?   how the result is placed; nil for mh.Replicate()
---   use_local_output   boolean?   nil or true: the result is this rank's block, a plain tensor
---   returns     Style       an entry of a plan
---   collective  no
---   example
---     local net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
---     mh.parallelize_module(net, mesh, mh.PairwiseParallel())
---     net(mh.ones{3, 4}).shape    --> {3, 2}
define("PairwiseParallel", "input_layouts", "output_layouts", "use_local_output")
--- mh.SequenceParallel({sequence_dim = nil, use_local_output = nil}) -> Style
---   A style of mh.parallelize_module for a LayerNorm, RMSNorm or Dropout between cut Linears: its parameters are
---   replicated, and its input and result are cut along the sequence.
---   sequence_dim   integer?   the dim that is cut; nil for 1
---   use_local_output   boolean?   true: the result is this rank's block, a plain tensor
---   returns     Style       an entry of a plan
---   collective  no
---   example
---     local net = mh.parallelize_module(nn.LayerNorm(4), mesh, mh.SequenceParallel())
---     net.weight.placements[1]:is_replicate()    --> true
define("SequenceParallel", "sequence_dim", "use_local_output")
--- mh.PrepareModuleInput({input_layouts = nil, desired_input_layouts = nil, input_kwarg_layouts = nil,
---     desired_input_kwarg_layouts = nil, use_local_output = nil}) -> Style
---   A style of mh.parallelize_module that moves the arguments of a module. A list has an entry for each argument;
---   tables of names are for arguments by name.
---   input_layouts   Placement|{Placement}?   how the arguments are placed
---   desired_input_layouts   Placement|{Placement}?   how they shall be placed
---   input_kwarg_layouts   table?   placements by the name of an argument
---   desired_input_kwarg_layouts   table?   placements by the name of an argument
---   use_local_output   boolean?   true: arguments become this rank's block, plain tensors
---   returns     Style       an entry of a plan
---   collective  no
---   errors      ValueError, by mh.parallelize_module: neither input_layouts nor input_kwarg_layouts
---   example
---     local style = mh.PrepareModuleInput{input_layouts = mh.Replicate(), desired_input_layouts = mh.Shard(0)}
---     tostring(style):match("^%w+")    --> PrepareModuleInput
define("PrepareModuleInput", "input_layouts", "desired_input_layouts", "input_kwarg_layouts",
  "desired_input_kwarg_layouts", "use_local_output")
--- mh.PrepareModuleOutput({output_layouts = nil, desired_output_layouts = nil, use_local_output = nil}) -> Style
---   A style of mh.parallelize_module that moves the results of a module. A list has an entry for each result.
---   output_layouts   Placement|{Placement}?   how the results are placed
---   desired_output_layouts   Placement|{Placement}?   how they shall be placed
---   use_local_output   boolean?   nil or true: results are this rank's block, plain tensors
---   returns     Style       an entry of a plan
---   collective  no
---   example
---     local style = mh.PrepareModuleOutput{output_layouts = mh.Shard(0), desired_output_layouts = mh.Replicate()}
---     tostring(style):match("^%w+")    --> PrepareModuleOutput
define("PrepareModuleOutput", "output_layouts", "desired_output_layouts", "use_local_output")

local function is_style(value)
  return builtin_styles[value] or (type(value) == "table" and type(value.apply) == "function")
end

-- ---- Lua to JSON ----------------------------------------------------------------------------------------------------

local encode

--- A list may have holes; one with names too becomes an object in which "0" is the first.
local function encode_table(value, custom)
  local last, names = 0, false
  for key in pairs(value) do
    if math.type(key) == "integer" and key >= 1 then
      last = math.max(last, key)
    elseif type(key) == "string" then
      names = true
    else
      fail("parallelize_module: a plan has names and lists, found the key " .. mh._describe(key))
    end
  end
  local encoded = {}
  if not names then
    for i = 1, last do encoded[i] = encode(value[i], custom) end
    return encoded
  end
  for key, one in pairs(value) do
    encoded[type(key) == "string" and key or tostring(key - 1)] = encode(one, custom)
  end
  return encoded
end

function encode(value, custom)
  if value == nil or value == false or value == mh.none then return mh.none end
  if builtin_styles[value] then
    local encoded = {style = value.style}
    for key, one in pairs(value) do
      if type(one) == "boolean" then encoded[key] = one else encoded[key] = encode(one, custom) end
    end
    return encoded
  end
  if is_style(value) then
    custom[#custom + 1] = value
    return {style = "custom", number = #custom}
  end
  if type(value) == "table" and not getmetatable(value) then return encode_table(value, custom) end
  if type(value) == "userdata" then return tostring(value) end
  return value
end

local function is_engine_plan(value)
  return type(value) == "userdata" and tostring((getmetatable(value) or {}).__name):find("ParallelPlan", 1, true) ~= nil
end

--- Returns true for what read_plan may take, which a mesh is not.
function styles.is_plan(value) return type(value) == "table" or is_engine_plan(value) end

--- The engine's plan, and the list of styles that are written in Lua.
function styles.read_plan(op, plan)
  if is_engine_plan(plan) then return plan, {} end
  if type(plan) ~= "table" or (getmetatable(plan) and not is_style(plan)) then
    fail(op .. ": Expect ParallelStyle or table {name = ParallelStyle} for the plan, found "
      .. mh._describe(plan))
  end
  local custom = {}
  if not is_style(plan) then
    for key, value in pairs(plan) do
      if type(key) ~= "string" then
        fail(op .. ": the names of a plan are strings, found " .. mh._describe(key))
      end
      if type(value) ~= "table" then
        fail(("%s: Expect ParallelStyle or table for '%s' of the plan, found %s\n" ..
            "  fix   {%s = mh.ColwiseParallel()}; placements of parameters: {parameter = {['fc1.weight'] = ...}}")
          :format(op, key, mh._describe(value), key:find("^[%a_][%w_]*$") and key or ("[%q]"):format(key)))
      end
    end
  end
  return mh._plans.make_plan(mh.json.encode(encode(plan, custom))), custom
end

return styles
