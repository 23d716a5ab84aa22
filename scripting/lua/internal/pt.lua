-- SPDX-License-Identifier: Apache-2.0
-- Files of PyTorch: mh.load, mh.save_pt, and the state of modules that were pickled whole.

local mh = require "moonhalo"
local ordered_map = require "moonhalo.internal.ordered_map"

local fail = mh.fail
local pt = {}

--- mh.load(path) -> any
---   Reads .pt, .pth, .ckpt (Lightning) and .bin files of torch.save, TorchScript programs, and .mdlus of PhysicsNeMo.
---   Nothing of the file is executed: a class that is not known is a table {python = "module.Class", args = list,
---   state = ..., list = ..., dict = ...}, of which empty parts are left out. A dict whose keys are all strings is an
---   ordered map; lists, tuples and sets are lists; None is nil in dicts and mh.none in lists; arrays and scalars of
---   numpy are tensors and numbers; a dtype or a device is its name. A .mdlus is {state_dict = ..., args = ...,
---   metadata = ...}.
---   path        string      of a file that this rank sees
---   returns     any         tensors on the CPU, with the file's dtypes. A tensor is read when it is first used;
---                           load_state_dict reads only what the blocks of this rank need
---   collective  no
---   errors      ValueError: not a file of PyTorch, damaged, cut short, or of before PyTorch 1.6
---   example
---     mh.save_pt(folder .. "/net.pt", {weight = mh.ones{2, 3}, epoch = 3})
---     local file = mh.load(folder .. "/net.pt")
---     file.epoch, file.weight.shape    --> 3  {2, 3}
function pt.load(path)
  if type(path) ~= "string" then fail("load: the path is a string, got " .. mh._describe(path)) end
  local value, notes = mh._pt.load(path)
  if not notes["args.json"] then return value end
  local result = {state_dict = value}
  for name, text in pairs(notes) do result[name:match("^[^.]*")] = mh.json.decode(text) end
  return result
end

local function is_ordered(value) return getmetatable(value) == getmetatable(ordered_map()) end

local function is_pickled(value)
  return type(value) == "table" and rawget(value, "python") and rawget(value, "state")
end

--- Enters the tensors of a pickled module and of those in it under the names of its state_dict().
local function collect(object, path, found, above)
  local own = object.state
  if above[object] then return end
  above[object] = true
  local passing = {}
  for _, name in ipairs(rawget(own, "_non_persistent_buffers_set") or {}) do passing[name] = true end
  for _, part in ipairs {"_parameters", "_buffers"} do
    for name, tensor in pairs(rawget(own, part) or {}) do
      if mh._pt.facts(tensor) and not passing[name] then found[path .. name] = tensor end
    end
  end
  for name, child in pairs(rawget(own, "_modules") or {}) do
    if is_pickled(child) then collect(child, path .. name .. ".", found, above) end
  end
  above[object] = nil
end

local function is_script(value) return is_pickled(value) and value.python:find("^__torch__%.") end

--- The same of a TorchScript program, whose attributes are its tensors and its modules.
local function collect_script(object, path, found, above)
  if above[object] then return end
  above[object] = true
  for name, value in pairs(object.state) do
    if is_script(value) then
      collect_script(value, path .. name .. ".", found, above)
    elseif mh._pt.facts(value) then
      found[path .. name] = value
    end
  end
  above[object] = nil
end

--- The tensors by name of a module that torch.save or torch.jit.save wrote whole; other values as they are.
function pt.state_of(value)
  local found = ordered_map()
  if is_script(value) then
    collect_script(value, "", found, {})
  elseif is_pickled(value) and rawget(value.state, "_modules") then
    collect(value, "", found, {})
  else
    return value
  end
  return found
end

local kDeepest = 100

local function refuse_value(path, place, problem, fix)
  place = place == "" and "the value" or "'" .. place .. "'"
  fail(("save_pt: '%s': %s %s\n  fix   %s"):format(path, place, problem, fix))
end

local function length_of_list(value)
  local count = 0
  for key in pairs(value) do
    if math.type(key) ~= "integer" or key < 1 then return nil end
    count = count + 1
  end
  return count == #value and count > 0 and count or nil
end

local function is_stateful(value)
  local meta = getmetatable(value)
  return meta and not is_ordered(value) and type(meta) == "table"
end

--- Gives `value` to the writer part by part; `place` names it in errors: "state.0.weight".
local function write(writer, path, value, place, depth)
  if depth > kDeepest then
    refuse_value(path, place, ("is nested deeper than %d, or contains itself"):format(kDeepest), "save its parts")
  end
  if type(value) ~= "table" or value == mh.none then
    if not writer:value(value) then
      refuse_value(path, place, "cannot be saved: it is " .. mh._describe(value),
        "save tensors, numbers, strings, booleans and tables of them; of a module or an optimizer its state_dict()")
    end
    return
  end
  if is_stateful(value) then
    refuse_value(path, place, "cannot be saved: it is " .. mh._describe(value), "give its state_dict()")
  end
  local function below(key) return (place == "" and "" or place .. ".") .. tostring(key) end
  local length = not is_ordered(value) and length_of_list(value)
  if length then
    writer:begin_list()
    for i = 1, length do write(writer, path, value[i], below(i), depth + 1) end
    return writer:end_list()
  end
  writer:begin_dict()
  for key, item in pairs(value) do
    if not writer:value(key) or mh.is_tensor(key) then
      refuse_value(path, below(key), "has a key that is not a string, a number or a boolean", "use such keys")
    end
    write(writer, path, item, below(key), depth + 1)
  end
  writer:end_dict()
end

--- mh.save_pt(path, value) -> nothing
---   Writes a file that torch.load opens by default, with weights_only=True. Tables with the keys 1 to n become lists,
---   others (and what state_dict() gives) an OrderedDict; mh.none becomes None; strings that are not UTF-8 become
---   bytes. Tensors are stored whole, on the CPU; one that is given twice is stored once. The file at `path` stays
---   until all is written.
---   path        string      of a file; of ranks that write one path the last one counts, so call it on one rank
---   value       any         a tensor, number, string, boolean, or a table of these: net:state_dict()
---   returns     nothing
---   collective  no
---   errors      ValueError: a ShardTensor (call full_tensor() on all ranks), a function, a module, a dtype that
---               PyTorch lacks
---               RuntimeError: the disk refuses it
---   example
---     mh.save_pt(folder .. "/linear.pt", nn.Linear(3, 2):state_dict())
---     mh.load(folder .. "/linear.pt").weight.shape    --> {2, 3}
function pt.save_pt(path, value)
  if type(path) ~= "string" then fail("save_pt: the path is a string, got " .. mh._describe(path)) end
  local writer = mh._pt.writer(path)
  write(writer, path, value, "", 0)
  writer:finish()
end

return pt
