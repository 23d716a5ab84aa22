-- SPDX-License-Identifier: Apache-2.0
-- mh.checkpoint.save("run/step100", {model = net, optimizer = opt, step = 100}) and .load of the same. A checkpoint is a
-- folder: KEY.safetensors with the tensors of every entry (names as in state_dict) and checkpoint.json with everything
-- else. ShardTensors are saved whole, so that any number of ranks can load it. All ranks call save and load together;
-- rank 0 writes. The table is a function too: mh.checkpoint(fn, x, ...) recomputes fn in the backward pass.

local mh = require "moonhalo"

local fail, info = mh.fail, mh.run_info()
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

local function pack(value, path, tensors)
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
  local packed = {}
  if rawlen(value) > 0 then
    for i, element in ipairs(value) do packed[i] = pack(element, path .. "." .. i, tensors) end
    return packed
  end
  for _, key in ipairs(sorted(value)) do
    if type(key) ~= "string" then fail("checkpoint.save: '" .. path .. "' has the key " .. tostring(key) .. ", which is no text") end
    packed[key] = pack(value[key], path == "" and key or path .. "." .. key, tensors)
  end
  return packed
end

local kNumbers = {nan = 0 / 0, inf = math.huge, ["-inf"] = -math.huge}

local function unpack_value(value, tensors)
  if type(value) ~= "table" then return value end
  if value["$tensor"] then return tensors[value["$tensor"]] end
  if value["$number"] then return kNumbers[value["$number"]] end
  local result = {}
  for key, element in pairs(value) do result[key] = unpack_value(element, tensors) end
  return result
end

-- ---- Saving and loading -------------------------------------------------------------------------------------------

local function barrier()
  if info.world_size > 1 then mh.barrier() end
end

--- Writes `state` under folder `path`; an earlier checkpoint there is replaced as a whole. Entries are modules,
--- optimizers, schedules (anything with state_dict), tensors, numbers, texts, booleans and tables of them. Collective.
function checkpoint.save(path, state)
  if type(state) ~= "table" then fail("checkpoint.save: wanted a table of entries, got " .. type(state)) end
  local entries, files = {}, {}
  for _, key in ipairs(sorted(state)) do
    if type(key) ~= "string" or not key:match("^[%w_-]+$") then
      fail("checkpoint.save: '" .. tostring(key) .. "' cannot be the name of an entry: letters, digits, _ and - are")
    end
    local value, tensors = state[key], {}
    if has_state(value) then value = value:state_dict() end
    entries[key] = pack(value, "", tensors)
    if #tensors > 0 then files[key] = tensors end
  end
  if info.rank == 0 then
    local partial = path .. ".partial"
    mh.files.make_folder(partial)
    for _, key in ipairs(sorted(files)) do
      mh.safetensors.save(partial .. "/" .. key .. ".safetensors", files[key], {format = "pt"})
    end
    local file, problem = io.open(partial .. "/" .. kFile, "w")
    if not file then fail("checkpoint.save: " .. problem) end
    local written, refused = file:write(mh.json.encode({format = kFormat, entries = entries}, 1), "\n")
    local closed, refused_late = file:close()
    if not (written and closed) then
      fail("checkpoint.save: the disk refused '" .. partial .. "/" .. kFile .. "': " .. (refused or refused_late))
    end
    mh.files.replace_folder(partial, path)
  end
  barrier()
end

local function read_tensors(path, key)
  local file, tensors = path .. "/" .. key .. ".safetensors", {}
  if mh.files.exists(file) then
    for _, pair in ipairs((mh.safetensors.load(file))) do tensors[pair[1]] = pair[2] end
  end
  return tensors
end

--- Restores the entries of `into` that have load_state_dict and returns all others as they were saved. An entry of
--- `into` that the checkpoint lacks is an error. Collective.
function checkpoint.load(path, into)
  if not mh.files.exists(path .. "/" .. kFile) then
    fail("checkpoint.load: '" .. path .. "' is no checkpoint (it has no " .. kFile .. ")")
  end
  local saved = mh.json.load(path .. "/" .. kFile)
  if saved.format ~= kFormat then fail(("checkpoint.load: '%s' has format %s, this reads %d"):format(path, tostring(saved.format), kFormat)) end
  local names = sorted(saved.entries)
  for _, key in ipairs(sorted(into or {})) do
    if saved.entries[key] == nil then
      fail(("checkpoint.load: '%s' has no entry '%s'%s\n  have  %s"):format(path, key, mh.did_you_mean(key, names),
        table.concat(names, ", ")))
    end
    if not has_state(into[key]) then fail("checkpoint.load: entry '" .. key .. "' has no load_state_dict; it is among the results") end
  end
  local rest = {}
  for _, key in ipairs(names) do
    local value = unpack_value(saved.entries[key], read_tensors(path, key))
    if into and into[key] ~= nil then
      into[key]:load_state_dict(value)
    else
      rest[key] = value
    end
  end
  return rest
end

--- mh.checkpoint(fn, ...) is fn(...), a function from tensors to tensors, whose intermediate results are not kept for the
--- backward pass but computed again there, with the same random numbers. Other arguments are passed on as they are.
return setmetatable(checkpoint, {__call = function(_, fn, ...) return mh._checkpoint(fn, ...) end})
