-- SPDX-License-Identifier: Apache-2.0
-- mh.checkpoint.save("run/step100", {model = net, optimizer = opt, step = 100}) and .load of the same. A checkpoint is
-- a folder: KEY.safetensors with the tensors of every entry (names as in state_dict; of optimizers "exp_avg/NAME") and
-- checkpoint.json with everything else. This file turns objects of Lua into entries and back; the steps of saving and
-- loading are those of C++ (io/checkpoint/packed_checkpoint.h). All ranks call save and load together, and what fails
-- on one fails on all.
-- The table is a function too: mh.checkpoint(fn, x, ...) recomputes fn in the backward pass.

local mh = require "moonhalo"
local sorted = require "moonhalo.internal.sorted_keys"
local strict = require "moonhalo.internal.strict"
local values = require "moonhalo.internal.checkpoint_values"
local optimizers = require "moonhalo.internal.checkpoint_optimizers"
local stages = require "moonhalo.internal.checkpoint_stages"
local per_rank = require "moonhalo.internal.checkpoint_per_rank"
local history = require "moonhalo.internal.checkpoint_history"
local folders = require "moonhalo.internal.checkpoint_folders"
local casts = require "moonhalo.internal.parameter_casts"
local parts = require "moonhalo.internal.state_parts"
local check_saved = require("moonhalo.nn.state").check_saved

local fail, files, cfiles = mh.fail, mh._files, mh._checkpoint_files
local checkpoint = {}

local function has_state(value)
  local kind = type(value)
  if kind == "userdata" then return not mh.is_tensor(value) and strict.get(value, "load_state_dict") ~= nil end
  return kind == "table" and type(strict.get(value, "state_dict")) == "function"
      and type(strict.get(value, "load_state_dict")) == "function"
end

--- True if `value` is a module with the state_dict that all modules have.
local function is_module(value)
  return type(value) == "table" and rawget(value, "_parameters") ~= nil
      and value.load_state_dict == mh.nn.Module.load_state_dict
    and value.state_dict == mh.nn.Module.state_dict
end

local function modules_of(state)
  local found = {}
  for _, key in ipairs(sorted(state)) do
    if is_module(state[key]) then found[#found + 1] = {key, state[key]} end
  end
  return found
end

--- An error unless `state` is a table of entries. `call`: how that is written for a module.
local function check_entries(what, state, call)
  if type(state) == "table" and not has_state(state) then return end
  local given = type(state) == "table" and "one object that has a state" or mh._describe(state)
  fail(("checkpoint.%s: expected a table of entries by name, got %s\n  fix   %s"):format(what, given, call))
end

local function check_path(what, path)
  if type(path) ~= "string" or path == "" then
    fail(("checkpoint.%s: the path is %s, expected a string"):format(what, mh._describe(path)))
  end
end

local function check_options(what, options, known)
  if options ~= nil and (type(options) ~= "table" or getmetatable(options)) then
    fail(("checkpoint.%s: the options are a table, got %s"):format(what, mh._describe(options)))
  end
  for _, key in ipairs(sorted(options or {})) do
    local value = options[key]
    if known[key] == nil then
      fail(("checkpoint.%s: unknown option '%s'%s"):format(what, tostring(key),
          mh.did_you_mean(tostring(key), sorted(known))))
    end
    if known[key] ~= "any" and type(value) ~= known[key] then
      fail(("checkpoint.%s: %s = %s, expected %s"):format(what, key, mh._describe(value),
          known[key] == "boolean" and "true or false" or known[key] == "table" and "a list of names" or "a string"))
    end
  end
  return options or {}
end

local function check_count(name, value, wanted)
  if value ~= nil and (math.type(value) ~= "integer" or value < 1) then
    fail(("checkpoint.save: %s = %s, expected %s"):format(name, mh._describe(value), wanted))
  end
end

-- ---- Saving ---------------------------------------------------------------------------------------------------------

--- Collects what is to be written: entries for checkpoint.json, and lists of {name, tensor} by entry.
local function pack_all(state)
  local entries, tensors, modules = {}, {}, modules_of(state)
  for _, key in ipairs(sorted(state)) do
    if not cfiles.is_entry_name(key) then
      fail("checkpoint.save: '" .. tostring(key)
          .. "' cannot be the name of an entry: letters, digits, _ and - are\n  fix   give what "
        .. "belongs together one name: {model = net, history = {...}}")
    end
    local value, own = state[key], {entry = key}
    local pipe = stages.pipeline_of(value)
    if mh._is_optimizer(value) then
      entries[key] = optimizers.pack(value, modules, own)
    elseif pipe then
      entries[key] = stages.pack_model(pipe, own)
    else
      local kind = type(value)
      if kind == "function" or kind == "thread" then
        fail(("checkpoint.save: the entry '%s' is a %s, which cannot be saved"):format(key, kind))
      end
      entries[key] = values.pack(has_state(value) and value:state_dict() or value, "", own, 1)
    end
    if #own > 0 then tensors[key] = own end
  end
  return entries, tensors
end

--- For state_parts.lua.
checkpoint._pack = pack_all

local saving  -- the one that runs in the background

local function wait_for_background()
  if saving then saving:wait() end
end

--- A save that is written in the background. `own`: the object of its layout with wait and is_done.
local Saving = {}
Saving.__index, Saving.__class = Saving, Saving

--- Returns the path when the checkpoint is in its place. Collective; what failed on one rank is an error on all.
function Saving:wait()
  if not self.own then return self.path end
  local own = self.own
  self.own, saving = nil, nil
  self.path = own:wait()
  if self.notes then folders.note_saved(self.path) end
  history.keep(self.path, self.keep)
  return self.path
end

--- True if this rank has written its part.
function Saving:is_done() return self.own == nil or self.own:is_done() end

strict.methods(Saving, "Save")

--- Ends a save, or leaves that to wait() if it is written in the background. `notes`: its end is to be noted.
--- Collective.
local function conclude(own, options, notes)
  if options.async then
    saving = setmetatable({own = own, keep = options.keep, notes = notes}, Saving)
    return saving
  end
  local path = own:wait()
  if notes then folders.note_saved(path) end
  history.keep(path, options.keep)
end

--- Writes entries and their tensors as whole tensors. Collective.
local function write_whole(path, entries, tensors, options)
  local own = cfiles.save(path, mh.json.encode(entries, 1), tensors, options.async, options.max_file_bytes)
  return conclude(own, options, true)
end

local function check_layout(options)
  local layout = options.layout or "whole"
  if layout ~= "whole" and layout ~= "per_rank" then
    fail(("checkpoint.save: layout = %s%s\n  have  \"whole\", \"per_rank\""):format(tostring(layout),
      mh.did_you_mean(tostring(layout), {"per_rank", "whole"})))
  end
  if layout == "per_rank" and options.max_file_bytes then
    fail("checkpoint.save: max_file_bytes is for layout = \"whole\"\n  fix   leave one of them out")
  end
  return layout
end

--- mh.checkpoint.save(path, state, {keep = nil, async = false, max_file_bytes = nil, layout = "whole"}) -> table?
---   Writes a checkpoint, a folder that takes the place of an earlier one as a whole. Modules become model.safetensors
---   with PyTorch's names. ShardTensors are written whole, however they are placed; plain tensors are those of rank 0.
---   path        string      of the folder
---   state       table       entries by name: modules, optimizers, schedules (anything with state_dict and
---     load_state_dict), tensors, numbers, strings, booleans, tables of them
---   keep        integer?    afterwards removes all but this many newest checkpoints beside it, whose names differ from
---     its name only in digits
---   async       boolean     copies the tensors and returns at once; the next save waits for the writing
---   max_file_bytes   integer?   divides an entry into files of at most this size, with the index of Hugging Face
---   layout      "whole"|"per_rank"   "per_rank": every rank writes its blocks into a folder of its own
---   returns     table?      with async {wait, is_done}
---   collective  over all ranks
---   errors      ValueError: an entry that cannot be saved, or the disk refuses; on all ranks
---   example
---     local net = nn.Linear(2, 2)
---     mh.checkpoint.save(folder .. "/step1", {model = net, step = 1})
---     mh.files.exists(folder .. "/step1/model.safetensors")    --> true
function checkpoint.save(path, state, options)
  check_path("save", path)
  check_entries("save", state, "mh.checkpoint.save(path, {model = net})")
  options = check_options("save", options, {keep = "any", async = "boolean", max_file_bytes = "any", layout = "any"})
  check_count("keep", options.keep, "a number of checkpoints")
  check_count("max_file_bytes", options.max_file_bytes, "a number of bytes")
  wait_for_background()
  local layout, entries, tensors = check_layout(options), pack_all(state)
  if mh.backend() == "fake" then mh._dry_run_save(tensors) end
  if layout == "per_rank" then
    return conclude(per_rank.save(path, entries, tensors, options.async), options)
  end
  return write_whole(path, entries, tensors, options)
end

-- ---- Loading --------------------------------------------------------------------------------------------------------

--- Errors of `fn` say file and entry.
local function at_place(place, fn, ...)
  local done, problem = pcall(fn, ...)
  if done then return problem end
  if type(problem) ~= "string" then error(problem, 0) end
  local position, text = problem:match("^([^\n]-:%d+: )(.*)$")
  error((position or "") .. place .. (text or problem), 0)
end

--- The checkpoint under `path`: {folder, format, entries, reader}. Collective.
local function open(path)
  local layout = files.on_first_rank(function()
    return not cfiles.find("checkpoint.load", files.resolve(path)) and per_rank.is_here(path) and "per_rank" or "whole"
  end)
  if layout == "per_rank" then return per_rank.open(path) end
  local folder, text, format, reader = cfiles.open(path)
  local saved = at_place(("checkpoint.load: '%s/checkpoint.json': "):format(folder), mh.json.decode, text)
  return {folder = folder, format = format, entries = saved.entries, reader = reader}
end

--- A saved module: checks it, and returns what reads it.
local function plan_module(module, value, names, key, reader, options)
  local own, given = check_saved(module, value, options)
  local checked = per_rank.checks(reader)
  for name, target in own do
    if checked and given[name] ~= nil then reader:check(key, names[given[name]], target) end
  end
  return function()
    mh.no_grad(function()
      for name, target in own do
        local saved = given[name]
        if saved ~= nil and target:is_deferred() then
          target:copy_(reader:read(key, names[saved]))
        elseif saved ~= nil then
          reader:read_into(key, names[saved], target)
        end
      end
    end)
  end
end

--- States have the layout of their parameters.
local function check_blocks(optimizer, value, names, key, reader)
  local position = 0
  for _, group in ipairs(optimizer.param_groups) do
    for _, parameter in ipairs(group.params) do
      position = position + 1
      for _, saved in pairs(value.state[position] or {}) do
        if names[saved] and parts.same_shape(saved.shape, parameter.shape) then
          reader:check(key, names[saved], parameter)
        end
      end
    end
  end
end

local function plan_optimizer(optimizer, value, names, key, reader)
  local alone = stages.pipeline_of_optimizer(optimizer) ~= nil  -- other ranks read other tensors
  optimizer:_check_state_dict(value)
  if per_rank.checks(reader) then check_blocks(optimizer, value, names, key, reader) end
  return function()
    optimizer:load_state_dict(value)
    values.walk_both(value.state, optimizer:state_dict().state, function(saved, target)
      if not names[saved] then return end
      if alone then
        reader:read_alone(key, names[saved], target)
      else
        reader:read_into(key, names[saved], target)
      end
    end)
  end
end

--- Anything else that has a state gets its tensors: placed as those it has now, others plain.
local function plan_object(object, value, names, key, reader)
  return function()
    local now = object:state_dict()
    object:load_state_dict(values.replace_tensors(value, now, function(saved, like)
      return reader:read(key, names[saved], like)
    end, names))
  end
end

--- `others`: names of entries that are required among the results.
local function check_wanted(source, into, others)
  local names = sorted(source.entries)
  local function check(key)
    if source.entries[key] ~= nil then return end
    fail(("checkpoint.load: '%s' has no entry '%s'%s\n  have  %s\n" ..
        "  fix   use one of these names; what was not saved must not be in the table")
      :format(source.folder, tostring(key), mh.did_you_mean(tostring(key), names), table.concat(names, ", ")))
  end
  for _, key in ipairs(others or {}) do check(key) end
  for _, key in ipairs(sorted(into)) do
    check(key)
  end
end

--- mh.checkpoint.load(path, into = nil, {strict = true, device = nil, verify = true, entries = nil}) -> table
---   Restores modules, optimizers and schedules from a checkpoint, on any number of ranks and with any placements, and
---   returns the other entries. What does not fit is found before anything changes.
---   path        string      of the checkpoint
---   into        table?      the table that was saved, or a part of it: objects are restored, numbers and strings
---     replaced
---   strict      boolean     false lets modules have missing or other tensors, and casts
---   device      string?     of the tensors that are returned
---   verify      boolean     reads all data beforehand, to find altered files
---   entries     {string}?   names that must be among the results
---   returns     table       entries that were not restored, by name; their tensors plain on every rank
---   collective  over all ranks
---   errors      ValueError: no checkpoint there, names, shapes or dtypes differ, or a damaged file
---   example
---     local net = nn.Linear(2, 2)
---     mh.checkpoint.save(folder .. "/load", {model = net, step = 7})
---     mh.checkpoint.load(folder .. "/load", {model = net}).step    --> 7
function checkpoint.load(path, into, options)
  check_path("load", path)
  options = check_options("load", options,
      {strict = "boolean", device = "string", verify = "boolean", entries = "table"})
  into = into or {}
  check_entries("load", into, "mh.checkpoint.load(path, {model = net})")
  wait_for_background()
  local source = open(path)
  local reader, modules = source.reader, modules_of(into)
  check_wanted(source, into, options.entries)
  local objects, steps, rest = {}, {}, {}
  for _, key in ipairs(sorted(source.entries)) do
    local place = ("checkpoint.load: '%s', entry '%s': "):format(source.folder, key)
    local names, object = {}, into[key]
    local value = values.unpack(source.entries[key], function(name)
      local described = reader:describe(key, name)
      if described then names[described] = name end
      return described
    end, function(problem) fail(place .. problem) end)
    local pipe = stages.pipeline_of(object)
    if pipe then
      steps[#steps + 1] = {place, at_place(place, stages.plan_model, pipe, value, names, key, reader, options)}
    elseif is_module(object) then
      steps[#steps + 1] = {place, at_place(place, plan_module, object, value, names, key, reader, options)}
    elseif mh._is_optimizer(object) then
      local step
      files.on_every_rank(function()  -- stages of a pipeline differ in what they lack
        if source.format > 1 then value = at_place(place, optimizers.by_position, object, modules, value, options) end
        step = at_place(place, plan_optimizer, object, value, names, key, reader)
        return ""
      end)
      steps[#steps + 1] = {place, step}
    elseif has_state(object) then
      objects[#objects + 1] = {place, plan_object(object, value, names, key, reader)}
    else
      for _, name in pairs(object == nil and per_rank.checks(reader) and names or {}) do
        reader:check_whole(key, name)
      end
      rest[key] = {optimizers.as_state_dict(value), names}
    end
  end
  if per_rank.checks(reader) then reader:agree() end
  if options.verify ~= false then reader:verify(sorted(source.entries)) end
  for _, list in ipairs {objects, steps} do  -- those that may still refuse come first
    for _, step in ipairs(list) do at_place(step[1], step[2]) end
  end
  for key, entry in pairs(rest) do
    rest[key] = values.replace_tensors(entry[1], into[key], function(saved, like)
      local tensor = reader:read(key, entry[2][saved], like)
      return options.device and tensor:to(options.device) or tensor
    end, entry[2])
  end
  reader:finish()
  mh.barrier()  -- rank 0 may save again when all have read
  for _, key in ipairs(sorted(rest)) do
    if into[key] ~= nil then rest[key] = values.fill(into[key], rest[key]) end
    if into[key] ~= nil then into[key] = rest[key] end
  end
  return rest
end

--- mh.checkpoint.import_optimizer(optimizer, state, options = nil) -> nothing
---   Restores the state_dict() of one of PyTorch's optimizers, as mh.load gives it: options of groups, steps and
---   moments. Of tensors that are still in a file, only this rank's blocks are read.
---   optimizer   Optimizer   SGD, Adam, AdamW, RMSprop or Adagrad, of the same kind
---   state       table       {state = ..., param_groups = ...}: mh.load("x.ckpt").optimizer_states[1]
---   options     table?      {names = list, module = net}: the names of the parameters in PyTorch's order, where the
---                           optimizer here has another one, and the module that has them
---   returns     nothing
---   collective  no
---   errors      ValueError: another kind of optimizer, other groups, other shapes, an option that the optimizer lacks;
---               nothing has changed then
---   example
---     local net = mh.nn.Linear(3, 2)
---     local opt = mh.optim.SGD(net:parameters(), {lr = 0.1})
---     local group = {lr = 0.05, momentum = 0, dampening = 0, weight_decay = 0, nesterov = false, params = {0, 1}}
---     mh.checkpoint.import_optimizer(opt, {state = {}, param_groups = {group}})
---     opt.param_groups[1].lr    --> 0.05
function checkpoint.import_optimizer(...) return require "moonhalo.internal.import_optimizer"(...) end

--- mh.checkpoint.merge(from, to) -> nothing
---   Makes a checkpoint of whole tensors, one file for each entry, of a checkpoint of any layout. `moonhalo merge FROM
---   TO` does the same.
---   from        string      path of the checkpoint
---   to          string      path of the new one
---   returns     nothing
---   collective  no; it runs on one rank, which has all tensors in memory meanwhile
---   errors      ValueError: several ranks, or no checkpoint there
---   example
---     local ok, message = pcall(mh.checkpoint.merge, folder .. "/nothing", folder .. "/new")
---     ok    --> false
function checkpoint.merge(from, to)
  check_path("merge", from)
  check_path("merge", to)
  if mh.world_size() ~= 1 then
    fail(("checkpoint.merge: on one rank\n  have  %d\n  fix   moonhalo merge FROM TO"):format(mh.world_size()))
  end
  local tensors, entries = {}, nil
  if cfiles.find("checkpoint.load", files.resolve(from)) or not per_rank.is_here(from) then
    local source = open(from)
    entries = source.entries
    source.reader:verify(sorted(entries))
    for _, key in ipairs(sorted(entries)) do
      local own = {}
      for i, name in ipairs(source.reader:names(key)) do own[i] = {name, source.reader:read(key, name)} end
      if #own > 0 then tensors[key] = own end
    end
    source.reader:finish()
    if source.format < 2 then
      fail(("checkpoint.merge: '%s' is of format %d\n  fix   load it into its modules and save those"):format(from,
          source.format))
    end
  else
    local of_key
    entries, of_key = per_rank.read_all(from)
    for key, list in pairs(of_key) do tensors[key] = parts.whole("checkpoint.merge: entry '" .. key .. "'", list) end
  end
  write_whole(to, entries, tensors, {})
end

--- mh.checkpoint.latest(folder) -> string?
---   The path of the checkpoint in a folder that was saved last.
---   folder      string      with checkpoints in it
---   returns     string?     "run/step300" for "run"; nil if there is none
---   collective  over all ranks
---   example
---     mh.checkpoint.save(folder .. "/run/step3", {step = 3})
---     mh.checkpoint.latest(folder .. "/run"):match("[^/]+$")    --> step3
function checkpoint.latest(folder)
  check_path("latest", folder)
  wait_for_background()
  return history.latest(folder)
end

--- mh.checkpoint(fn, ...) -> any
---   Runs fn(...) without keeping intermediate results for backward, where they are computed again with the same random
---   numbers. It costs time and saves memory.
---   fn          function    of tensors; other arguments are passed on as they are
---   returns     any         the results of fn
---   collective  as fn, which also runs during backward
---   errors      TypeError: fn is not a function
---   example
---     local x = mh.ones({2}, {requires_grad = true})
---     mh.checkpoint(function(y) return y:exp() end, x):sum():backward()
---     ("%.3f"):format(x.grad[0]:item())    --> 2.718
return setmetatable(checkpoint, {__call = function(_, fn, ...) return mh._checkpoint(casts.bound(fn), ...) end})
