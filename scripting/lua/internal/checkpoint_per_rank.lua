-- SPDX-License-Identifier: Apache-2.0
-- Checkpoints with layout = "per_rank": PATH/rank-00002-of-00004 is a folder of rank 2 alone, with its blocks. Nothing travels,
-- and the ranks need no disk in common. All folders are complete before the first takes its name, and those of one save bear
-- one number; so after a kill at any moment some save is complete on every rank.

local mh = require "moonhalo"
local folders = require "moonhalo.internal.checkpoint_folders"
local parts = require "moonhalo.internal.state_parts"
local values = require "moonhalo.internal.checkpoint_values"

local fail, files, cfiles = mh.fail, mh._files, mh._checkpoint_files
local per_rank = {}

local kFile, kSave, kLoad = "checkpoint.json", "checkpoint.save", "checkpoint.load"
local kNote = "moonhalo.blocks"

local function folder_of(path, rank, ranks) return ("%s/rank-%05d-of-%05d"):format(path, rank, ranks) end
local function own_folder(path) return folder_of(path, mh.rank(), mh.world_size()) end

--- The numbers of ranks that have saved under `path`, as far as this rank sees.
local function counts_in(who, path)
  local found, list = {}, {}
  for _, name in ipairs(cfiles.list(who, path)) do
    local ranks = math.tointeger(tonumber(name:match("^rank%-%d+%-of%-(%d+)$")))
    if ranks and not found[ranks] then found[ranks], list[#list + 1] = true, ranks end
  end
  table.sort(list)
  return list
end

function per_rank.is_here(path) return #counts_in(kLoad, files.resolve(path)) > 0 end

--- The number of the save in a folder, as text; nil where none is complete.
local function number_of(folder)
  if not mh.files.exists(folder .. "/" .. kFile) then return end
  local saved = mh.json.load(folder .. "/" .. kFile)
  return type(saved) == "table" and type(saved.saved) == "number" and ("%.6f"):format(saved.saved) or nil
end

--- Returns the suffix of this rank's folder that holds the newest save that every rank has; nil where none is. Collective.
local function choose(folder)
  local own, newest, at = {}, nil, {}
  for _, suffix in ipairs {"", ".partial", ".replaced"} do
    local number = number_of(folder .. suffix)
    if number then own[#own + 1], at[number] = number, suffix end
  end
  local counts, texts = {}, files.of_all_ranks(table.concat(own, " "))
  for _, text in ipairs(texts) do
    for number in text:gmatch("%S+") do counts[number] = (counts[number] or 0) + 1 end
  end
  for number, count in pairs(counts) do
    if count == #texts and (not newest or tonumber(number) > tonumber(newest)) then newest = number end
  end
  return newest and at[newest]
end

-- ---- Saving ---------------------------------------------------------------------------------------------------------

local function write_own(folder, text, tensors)
  mh.files.make_folder(folder .. ".partial")
  for _, key in ipairs(values.sorted(tensors)) do
    local blocks, notes = parts.blocks_of(tensors[key])
    mh.safetensors.save(("%s.partial/%s.safetensors"):format(folder, key), blocks, {[kNote] = mh.json.encode(notes)})
  end
  files.write(kSave, folder .. ".partial/" .. kFile, text)
end

--- Writes this rank's blocks. `saved`: alike on all ranks. Collective.
function per_rank.save(path, entries, tensors, format)
  path = files.resolve(path)
  local folder = own_folder(path)
  local saved = tonumber(files.on_first_rank(function()
    if cfiles.find(kSave, path) then
      fail(("checkpoint.save: '%s' is a checkpoint of whole tensors\n  have  layout = \"per_rank\"\n  fix   choose another name, or "
        .. "remove it first"):format(path))
    end
    return ("%.6f"):format(cfiles.now())
  end))
  local kept = choose(folder)
  files.on_every_rank(function()
    if kept == ".partial" then cfiles.put_in_place(kSave, folder) end
    cfiles.settle(kSave, folder)
    return ""
  end)
  local text = mh.json.encode({format = format, saved = saved, layout = "per_rank", rank = mh.rank(), ranks = mh.world_size(),
    entries = entries}, 1) .. "\n"
  tensors = parts.summed(tensors)
  local done, problem = pcall(files.on_every_rank, function()
    write_own(folder, text, tensors)
    return ""
  end)
  if not done then
    pcall(files.on_every_rank, function()
      cfiles.discard(kSave, folder .. ".partial")
      return ""
    end)
    error(problem, 0)
  end
  files.on_every_rank(function()
    cfiles.put_in_place(kSave, folder)
    return ""
  end)
  files.on_every_rank(function()  -- what other numbers of ranks have left
    for _, ranks in ipairs(counts_in(kSave, path)) do
      for rank = mh.rank(), ranks ~= mh.world_size() and ranks - 1 or -1, mh.world_size() do
        cfiles.discard(kSave, folder_of(path, rank, ranks))
      end
    end
    return ""
  end)
end

-- ---- Loading --------------------------------------------------------------------------------------------------------

local function read_notes(file)
  local all = mh.json.decode((cfiles.header(file)))
  local text = type(all) == "table" and type(all.__metadata__) == "table" and all.__metadata__[kNote]
  if type(text) ~= "string" then fail(("checkpoint.load: '%s' is damaged: it does not say what its blocks are"):format(file)) end
  return mh.json.decode(text)
end

--- Reads this rank's blocks, as _checkpoint_files.reader reads whole tensors. Ranks find other problems; agree() tells them all.
local Blocks = {}
Blocks.__index = Blocks

function Blocks:describe(key, name)
  local note = self.notes[key] and self.notes[key][name]
  return note and mh.empty(note.shape, {dtype = note.dtype, device = "meta"}) or nil
end

--- Notes a problem unless `target` has the block that was saved.
function Blocks:check(key, name, target)
  local note = self.notes[key][name]
  local block, begin = cfiles.block(target)
  if self.problem or parts.same_block(note, block.shape, begin) then return end
  self.problem = ("checkpoint.load: '%s', entry '%s': '%s' lies in other blocks\n  have  %s of %s saved, %s wanted\n  fix   place it "
    .. "as it was saved, or make a checkpoint of whole tensors first: moonhalo merge %s OTHER"):format(self.folder, key, name,
    parts.block_text(note.size, note.begin), parts.block_text(note.shape), parts.block_text(block.shape, begin), self.path)
end

--- Notes a problem unless this rank has all of a tensor.
function Blocks:check_whole(key, name)
  local note = self.notes[key][name]
  if note.begin and parts.same_shape(note.size, note.shape) then return true end
  self.problem = self.problem or ("checkpoint.load: '%s', entry '%s': '%s' was saved in blocks\n  have  %s of %s\n  fix   load it into "
    .. "something that has the same placements, or make a checkpoint of whole tensors first: moonhalo merge %s OTHER"):format(
    self.folder, key, name == "" and key or name, parts.block_text(note.size, note.begin), parts.block_text(note.shape), self.path)
  return false
end

--- True of readers of blocks.
function per_rank.checks(reader) return getmetatable(reader) == Blocks end

--- An error on every rank if any found a problem. Collective.
function Blocks:agree()
  files.on_every_rank(function()
    if self.problem then fail(self.problem) end
    return ""
  end)
end

function Blocks:read_into(key, name, target) self.reader:read_block(key, name, target) end
Blocks.read_alone = Blocks.read_into

function Blocks:read(key, name, like)
  local note, target = self.notes[key][name], nil
  if like and like:is_shard_tensor() and parts.same_shape(like.shape, note.shape) then
    target = mh.empty_like(like:detach(), {dtype = note.dtype})
  elseif not self:check_whole(key, name) then
    return mh.empty(note.shape, {dtype = note.dtype, device = "meta"})
  else
    target = mh.empty(note.shape, {dtype = note.dtype})
  end
  self:read_into(key, name, target)
  return target
end

function Blocks:finish()
  self.reader:finish()
  self:agree()
end

--- This rank's checkpoint under `path`: {folder, format, entries, reader}. Collective.
function per_rank.open(path, newest)
  path = files.resolve(path)
  local folder = own_folder(path)
  files.on_every_rank(function()
    local counts = counts_in(kLoad, path)
    for _, ranks in ipairs(counts) do
      if ranks == mh.world_size() then return "" end
    end
    fail(("checkpoint.load: '%s' was saved by %s ranks, each its blocks\n  have  %d ranks\n  fix   make a checkpoint of whole tensors "
      .. "first: moonhalo merge %s OTHER"):format(path, table.concat(counts, " and by "), mh.world_size(), path))
  end)
  local suffix = choose(folder)
  if not suffix then
    fail(("checkpoint.load: '%s': the ranks have no save in common\n  fix   load an older checkpoint"):format(path))
  end
  local source = setmetatable({path = path, folder = folder .. suffix, notes = {}, reader = cfiles.reader()}, Blocks)
  local opened = {folder = source.folder, reader = source}
  files.on_every_rank(function()
    opened.entries, opened.format = folders.read_entries(source.folder, newest)
    for key in pairs(opened.entries) do
      local file = ("%s/%s.safetensors"):format(source.folder, key)
      if mh.files.exists(file) then
        source.notes[key] = read_notes(file)
        source.reader:add(key, file, cfiles.header(file))
      end
    end
    return ""
  end)
  return opened
end

--- The checkpoint of all ranks under `path` as {entries, parts of every entry: key -> list}: every folder is seen by this rank.
function per_rank.read_all(path, newest)
  path = files.resolve(path)
  local counts = counts_in(kLoad, path)
  local ranks, found, number = counts[#counts], {}, nil
  if #counts > 1 then
    fail(("checkpoint.merge: '%s' has blocks of %s ranks\n  fix   remove those that are old"):format(path, table.concat(counts, " and of ")))
  end
  for rank = 0, ranks - 1 do
    local folder = cfiles.find(kLoad, folder_of(path, rank, ranks))
    if not folder then fail(("checkpoint.merge: '%s' lacks the blocks of rank %d of %d\n  fix   copy its folder there"):format(path, rank, ranks)) end
    number = number or number_of(folder)
    if number_of(folder) ~= number then
      fail(("checkpoint.merge: '%s' is of another save than that of rank 0\n  fix   load and save it with %d ranks"):format(folder, ranks))
    end
    found[rank + 1] = folder
  end
  local entries, of_key = folders.read_entries(found[1], newest), {}
  for key in pairs(entries) do
    local list = {}
    for _, folder in ipairs(found) do
      local file = ("%s/%s.safetensors"):format(folder, key)
      if mh.files.exists(file) then list[#list + 1] = {notes = read_notes(file), tensors = mh.safetensors.load(file)} end
    end
    if #list > 0 then of_key[key] = list end
  end
  return entries, of_key
end

return per_rank
