-- SPDX-License-Identifier: Apache-2.0
-- The folders of checkpoints; rank 0 calls these. How a save replaces an earlier one:
-- io/checkpoint/checkpoint_folder.h.

local mh = require "moonhalo"
local values = require "moonhalo.internal.checkpoint_values"
local sorted_keys = require "moonhalo.internal.sorted_keys"

local fail, warn, files, cfiles = mh.fail, mh._plans.warn, mh._files, mh._checkpoint_files
local folders = {}

local kFile, kIndex = "checkpoint.json", ".safetensors.index.json"
local kSave, kLoad = "checkpoint.save", "checkpoint.load"

--- The folder that `path` means, when a checkpoint may be written there.
function folders.prepare(path)
  path = files.resolve(path)
  cfiles.settle(kSave, path)
  if not cfiles.find(kSave, path) and not files.is_empty(path) then
    fail(("checkpoint.save: '%s' is there and no checkpoint\n  have  no %s in it\n" ..
        "  fix   choose another name, or remove it first")
      :format(path, kFile))
  end
  return path
end

--- `tensors`: entry -> list of {name, tensor}. Returns the same by file, without its ending, and the indices of the
--- entries that are in several files, of at most `most` bytes if that is given: name -> text.
function folders.parts_of(tensors, most)
  local written, indices = {}, {}
  for key, list in pairs(tensors) do
    local parts, bytes, total = {{}}, 0, 0
    for _, pair in ipairs(list) do
      local size = pair[2]:numel() * pair[2]:element_size()
      if most and bytes > 0 and bytes + size > most then
        parts[#parts + 1], bytes = {}, 0
      end
      table.insert(parts[#parts], pair)
      bytes, total = bytes + size, total + size
    end
    local map = {}
    for i, part in ipairs(parts) do
      local name = #parts == 1 and key or ("%s-%05d-of-%05d"):format(key, i, #parts)
      if written[name] then fail(("checkpoint.save: the entry '%s' has the name of a part of another"):format(name)) end
      written[name] = part
      for _, pair in ipairs(part) do map[pair[1]] = name .. ".safetensors" end
    end
    if #parts > 1 then
      indices[key .. kIndex] = mh.json.encode({metadata = {total_size = total}, weight_map = map}, 1)
    end
  end
  return written, indices
end

function folders.begin(path, writer, indices)
  mh.files.make_folder(path .. ".partial")
  writer:create()
  for name, text in pairs(indices) do files.write(kSave, path .. ".partial/" .. name, text) end
end

--- The safetensors files of an entry that are there.
function folders.files_of(path, key)
  local file, index, found = path .. "/" .. key .. ".safetensors", path .. "/" .. key .. kIndex, {}
  if mh.files.exists(file) or not mh.files.exists(index) then return mh.files.exists(file) and {file} or {} end
  local read = mh.json.load(index)
  local map = type(read) == "table" and type(read.weight_map) == "table" and read.weight_map or {}
  for _, name in pairs(map) do
    if type(name) ~= "string" or not values.is_entry_name(name:match("^(.*)%.safetensors$")) then
      fail(("checkpoint.load: '%s' is damaged: '%s' cannot be the name of a file"):format(index, tostring(name)))
    end
    found[path .. "/" .. name] = true
  end
  return sorted_keys(found)
end

function folders.finish(path, text)
  files.write(kSave, path .. ".partial/" .. kFile, text)
end

--- Gives what is complete its name, unless a thread of `background` has. Collective.
function folders.commit(path, background)
  files.on_first_rank(function()
    if background then background:finish() else cfiles.put_in_place(kSave, path) end
  end)
end

--- After a failure: half a checkpoint goes, a complete one stays. Collective, so that no rank still sees what goes; the
--- failure that led here is the one to tell.
function folders.drop_unfinished(path)
  pcall(files.on_first_rank, function()
    if not mh.files.exists(path .. ".partial/" .. kFile) then cfiles.discard(kSave, path .. ".partial") end
  end)
end

--- The folder to load, which may be one that a killed save left.
function folders.choose(path)
  local name = files.resolve(path)
  local found = cfiles.find(kLoad, name)
  if not found then
    local unfinished = mh.files.exists(name .. ".partial")
        and ("\n  have  '%s.partial', which a save left unfinished"):format(name)
    fail("checkpoint.load: '" .. path .. "' is not a checkpoint (it has no " .. kFile .. ")" .. (unfinished or "")
      .. "\n  fix   give the path of mh.checkpoint.save, from the folder where the program runs; " ..
          "mh.checkpoint.latest(folder) finds the last one")
  end
  if found ~= name then
    warn(("checkpoint.load: '%s' is missing; a save that was killed left '%s' complete, which is loaded"):format(path,
        found))
  end
  return found
end

--- The entries of checkpoint.json, and its format. Names of entries become those of files, which must not be
--- elsewhere.
function folders.read_entries(path, newest)
  local file = path .. "/" .. kFile
  local saved = mh.json.load(file)
  local function damaged(problem) fail(("checkpoint.load: '%s' is damaged: %s"):format(file, problem)) end
  if type(saved) ~= "table" or saved.format == nil then damaged("it has no format") end
  if math.type(saved.format) ~= "integer" or saved.format < 1 or saved.format > newest then
    fail(("checkpoint.load: '%s' has format %s, this reads 1 to %d"):format(path, tostring(saved.format), newest))
  end
  if type(saved.entries) ~= "table" then damaged("it has no entries") end
  for key in pairs(saved.entries) do
    if not values.is_entry_name(key) then damaged(("'%s' cannot be the name of an entry"):format(tostring(key))) end
  end
  return saved.entries, saved.format
end

return folders
