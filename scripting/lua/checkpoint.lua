-- SPDX-License-Identifier: Apache-2.0
-- mh.checkpoint.save("run/step100", {model = net, optimizer = opt, step = 100}) and .load of the same. A checkpoint is a
-- folder: KEY.safetensors with the tensors of every entry (names as in state_dict) and checkpoint.json with everything
-- else. ShardTensors are saved whole, so that any number of ranks can load it. All ranks call save and load together;
-- rank 0 writes, and what fails there fails on all. The table is a function too: mh.checkpoint(fn, x, ...) recomputes fn in
-- the backward pass.

local mh = require "moonhalo"

local fail, warn, files = mh.fail, mh._plans.warn, mh._files
local checkpoint = {}

local kFormat = 1
local kFile = "checkpoint.json"

local function has_state(value)
  local kind = type(value)
  if kind == "userdata" then return not mh.is_tensor(value) and value ~= mh.none end
  return kind == "table" and type(value.state_dict) == "function" and type(value.load_state_dict) == "function"
end

local function plain(tensor)
  tensor = tensor:detach()
  return tensor:is_shard_tensor() and tensor:full_tensor() or tensor
end

local function sorted(values)
  local keys = {}
  for key in pairs(values) do keys[#keys + 1] = key end
  table.sort(keys)
  return keys
end

-- ---- Values to JSON and back: a tensor is {"$tensor": name}, a number that JSON lacks {"$number": "inf"} ------------

local kDeepest = 90  -- checkpoint.json holds some levels more

--- `depth`: of tables around the value.
local function pack(value, path, tensors, depth)
  if mh.is_tensor(value) then
    tensors[#tensors + 1] = {path, plain(value)}
    return {["$tensor"] = path}
  end
  local kind = type(value)
  if kind == "number" and (value ~= value or value == math.huge or value == -math.huge) then
    return {["$number"] = value ~= value and "nan" or value > 0 and "inf" or "-inf"}
  end
  if kind == "number" or kind == "string" or kind == "boolean" then return value end
  if kind ~= "table" then fail("checkpoint.save: '" .. path .. "' is a " .. kind .. ", which cannot be saved") end
  if depth > kDeepest then
    fail(("checkpoint.save: '%s...' is nested deeper than %d levels, or holds itself"):format(path:sub(1, 60), kDeepest))
  end
  local packed = {}
  if rawlen(value) > 0 then
    for i, element in ipairs(value) do packed[i] = pack(element, path .. "." .. i, tensors, depth + 1) end
    return packed
  end
  for _, key in ipairs(sorted(value)) do
    if type(key) ~= "string" then fail("checkpoint.save: '" .. path .. "' has the key " .. tostring(key) .. ", which is no text") end
    if key:sub(1, 1) == "$" then fail("checkpoint.save: '" .. path .. "' has the key '" .. key .. "', but $ is the checkpoint's own") end
    packed[key] = pack(value[key], path == "" and key or path .. "." .. key, tensors, depth + 1)
  end
  return packed
end

local kNumbers = {nan = 0 / 0, inf = math.huge, ["-inf"] = -math.huge}

--- `damaged(problem)` raises an error.
local function unpack_value(value, tensors, damaged)
  if type(value) ~= "table" then return value end
  local tensor, number = value["$tensor"], value["$number"]
  local text = tensor or number
  if text ~= nil and type(text) ~= "string" then damaged("a name is a " .. type(text)) end
  if tensor ~= nil then return tensors[tensor] or damaged(("the tensor '%s' is missing"):format(tensor)) end
  if number ~= nil then return kNumbers[number] or damaged(("'%s' is no number"):format(number)) end
  local result = {}
  for key, element in pairs(value) do result[key] = unpack_value(element, tensors, damaged) end
  return result
end

local function is_entry_name(key) return type(key) == "string" and key:match("^[%w_-]+$") ~= nil end

-- ---- Folders --------------------------------------------------------------------------------------------------------
-- A save writes NAME.partial, checkpoint.json last: with it the folder is complete. Then NAME and NAME.partial exchange their
-- names in one step, and what was NAME before goes. Where a file system cannot do that, NAME becomes NAME.replaced, then
-- NAME.partial becomes NAME. So whenever a save is killed a complete folder is there, which load and the next save find.

local kSave = "checkpoint.save"

local function is_complete(folder) return mh.files.exists(folder .. "/" .. kFile) end

--- The newest complete one of the folders that may be there.
local function find(path)
  for _, folder in ipairs {path, path .. ".partial", path .. ".replaced"} do
    if is_complete(folder) then return folder end
  end
end

--- Half a removed folder is not complete.
local function discard(folder)
  files.remove(kSave, folder .. "/" .. kFile)
  files.remove(kSave, folder)
end

--- Ends a save that was killed: what is complete takes its name if that is free, the rest goes.
local function settle(path)
  local found = find(path)
  if found and found ~= path then files.rename(kSave, found, path) end
  discard(path .. ".partial")
  discard(path .. ".replaced")
end

local function put_in_place(partial, path)
  if not is_complete(path) then return files.rename(kSave, partial, path) end
  if files.exchange(kSave, partial, path) then return end
  warn(("checkpoint.save: the file system of '%s' cannot exchange two folders in one step; a kill between two steps leaves "
    .. "'%s' complete, which load finds"):format(path, partial))
  files.rename(kSave, path, path .. ".replaced")
  files.rename(kSave, partial, path)
end

--- `tensors`: entry -> list of {name, tensor}; `text`: checkpoint.json.
local function write(path, tensors, text)
  path = files.resolve(path)
  settle(path)
  if not is_complete(path) and not files.is_empty(path) then
    fail(("checkpoint.save: '%s' is there and no checkpoint\n  have  no %s in it\n  fix   choose another name, or remove it first")
      :format(path, kFile))
  end
  local partial = path .. ".partial"
  local done, problem = pcall(function()
    mh.files.make_folder(partial)
    for _, key in ipairs(sorted(tensors)) do
      mh.safetensors.save(partial .. "/" .. key .. ".safetensors", tensors[key], {format = "pt"})
    end
    files.write(kSave, partial .. "/" .. kFile, text)
    put_in_place(partial, path)
  end)
  if not done and not is_complete(partial) then discard(partial) end
  if not done then error(problem, 0) end
  settle(path)
end

-- ---- Saving and loading -------------------------------------------------------------------------------------------

--- Writes `state` under folder `path`; an earlier checkpoint there is replaced as a whole. Entries are modules,
--- optimizers, schedules (anything with state_dict), tensors, numbers, texts, booleans and tables of them. Collective.
function checkpoint.save(path, state)
  if type(state) ~= "table" then fail("checkpoint.save: wanted a table of entries, got " .. type(state)) end
  local entries, tensors = {}, {}
  for _, key in ipairs(sorted(state)) do
    if not is_entry_name(key) then
      fail("checkpoint.save: '" .. tostring(key) .. "' cannot be the name of an entry: letters, digits, _ and - are")
    end
    local value, own = state[key], {}
    if has_state(value) then value = value:state_dict() end
    entries[key] = pack(value, "", own, 1)
    if #own > 0 then tensors[key] = own end
  end
  local text = mh.json.encode({format = kFormat, entries = entries}, 1) .. "\n"
  files.on_first_rank(function() write(path, tensors, text) end)
end

--- The folder to load, which may be one that a killed save left.
local function choose(path)
  local name = files.resolve(path)
  local found = find(name)
  if not found then
    local unfinished = mh.files.exists(name .. ".partial") and ("\n  have  '%s.partial', which a save left unfinished"):format(name)
    fail("checkpoint.load: '" .. path .. "' is no checkpoint (it has no " .. kFile .. ")" .. (unfinished or ""))
  end
  if found ~= name then
    warn(("checkpoint.load: '%s' is missing; a save that was killed left '%s' complete, which is loaded"):format(path, found))
  end
  return found
end

local function read_tensors(path, key)
  local file, tensors = path .. "/" .. key .. ".safetensors", {}
  if mh.files.exists(file) then
    for _, pair in ipairs((mh.safetensors.load(file))) do tensors[pair[1]] = pair[2] end
  end
  return tensors
end

--- The entries of checkpoint.json. Its names become those of files, which must not lie elsewhere.
local function read_entries(path)
  local file = path .. "/" .. kFile
  local saved = mh.json.load(file)
  local function damaged(problem) fail(("checkpoint.load: '%s' is damaged: %s"):format(file, problem)) end
  if type(saved) ~= "table" or saved.format == nil then damaged("it has no format") end
  if saved.format ~= kFormat then fail(("checkpoint.load: '%s' has format %s, this reads %d"):format(path, tostring(saved.format), kFormat)) end
  if type(saved.entries) ~= "table" then damaged("it has no entries") end
  for key in pairs(saved.entries) do
    if not is_entry_name(key) then damaged(("'%s' cannot be the name of an entry"):format(tostring(key))) end
  end
  return saved.entries
end

--- An error of load_state_dict names file and entry.
local function restore(object, value, place)
  local done, problem = pcall(function() object:load_state_dict(value) end)
  if done then return end
  if type(problem) ~= "string" then error(problem, 0) end
  local position, text = problem:match("^([^\n]-:%d+: )(.*)$")
  error((position or "") .. place .. (text or problem), 0)
end

--- Restores the entries of `into` that have load_state_dict and returns all others as they were saved. An entry of
--- `into` that the checkpoint lacks is an error. Collective.
function checkpoint.load(path, into)
  path = files.on_first_rank(function() return choose(path) end)
  local entries = read_entries(path)
  local names = sorted(entries)
  for _, key in ipairs(sorted(into or {})) do
    if entries[key] == nil then
      fail(("checkpoint.load: '%s' has no entry '%s'%s\n  have  %s"):format(path, key, mh.did_you_mean(key, names),
        table.concat(names, ", ")))
    end
    if not has_state(into[key]) then fail("checkpoint.load: entry '" .. key .. "' has no load_state_dict; it is among the results") end
  end
  local rest = {}
  for _, key in ipairs(names) do
    local place = ("checkpoint.load: '%s', entry '%s': "):format(path, key)
    local value = unpack_value(entries[key], read_tensors(path, key), function(problem) fail(place .. problem) end)
    if into and into[key] ~= nil then
      restore(into[key], value, place)
    else
      rest[key] = value
    end
  end
  mh.barrier()  -- rank 0 may save again when all have read
  return rest
end

--- mh.checkpoint(fn, ...) is fn(...), a function from tensors to tensors, whose intermediate results are not kept for the
--- backward pass but computed again there, with the same random numbers. Other arguments are passed on as they are.
return setmetatable(checkpoint, {__call = function(_, fn, ...) return mh._checkpoint(fn, ...) end})
