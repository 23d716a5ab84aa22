-- SPDX-License-Identifier: Apache-2.0
-- Checkpoints with layout = "per_rank": PATH/rank-00002-of-00004 is a folder of rank 2 alone, with its blocks.
-- Nothing is sent, and the ranks need no disk in common. All folders are complete before the first takes its name,
-- and those of one save have one number; so after a kill at any moment some save is complete on every rank.

local mh = require "moonhalo"
local parts = require "moonhalo.internal.state_parts"
local sorted_keys = require "moonhalo.internal.sorted_keys"
local folders = require "moonhalo.internal.checkpoint_folders"

local fail, files, cfiles = mh.fail, mh._files, mh._checkpoint_files
local per_rank = {}

local kFile, kSave, kLoad = "checkpoint.json", "checkpoint.save", "checkpoint.load"
local kNote = "moonhalo.blocks"

local function folder_of(path, rank, ranks) return ("%s/rank-%05d-of-%05d"):format(path, rank, ranks) end
local function own_folder(path) return folder_of(path, mh.rank(), mh.world_size()) end

--- The numbers of ranks that have saved under `path`, as far as this rank sees.
local function counts_in(who, path)
  local found, list = {}, {}
  for _, name in ipairs(folders.list(who, path)) do
    local ranks = math.tointeger(tonumber(name:match("^rank%-%d+%-of%-(%d+)$")))
    if ranks and not found[ranks] then found[ranks], list[#list + 1] = true, ranks end
  end
  table.sort(list)
  return list
end

function per_rank.is_here(path) return #counts_in(kLoad, files.resolve(path)) > 0 end

--- The numbers of the complete saves of a folder, as strings, and the suffix of the folder that holds each.
local function numbers_of(folder)
  local numbers, suffixes = {}, {}
  for _, suffix in ipairs {"", ".partial", ".replaced"} do
    local number = folders.saved_at(folder .. suffix)
    if number then numbers[#numbers + 1], suffixes[number] = number, suffix end
  end
  return numbers, suffixes
end

--- The newest of the numbers that all of `lists` have, or nil.
local function newest_of_all(lists)
  local counts, newest = {}, nil
  for _, numbers in ipairs(lists) do
    for _, number in ipairs(numbers) do counts[number] = (counts[number] or 0) + 1 end
  end
  for number, count in pairs(counts) do
    if count == #lists and (not newest or tonumber(number) > tonumber(newest)) then newest = number end
  end
  return newest
end

--- Returns the suffix of this rank's folder that holds the newest save that every rank has; nil where none is.
--- Collective.
local function choose(folder)
  local own, suffixes = numbers_of(folder)
  local lists = files.of_all_ranks(mh.json.encode(own))
  for i, text in ipairs(lists) do lists[i] = mh.json.decode(text) end
  return suffixes[newest_of_all(lists)]
end

-- ---- Saving ---------------------------------------------------------------------------------------------------------

--- Writes this rank's blocks, or copies them for the thread that it returns.
local function write_own(folder, text, tensors, async)
  mh.files.make_folder(folder .. ".partial")
  local writer = cfiles.own_writer(folder)
  for _, key in ipairs(sorted_keys(tensors)) do
    local blocks, notes = parts.blocks_of(tensors[key])
    writer:add(key, blocks, {[kNote] = mh.json.encode(notes)})
  end
  writer:create()
  if async then return writer:copy() end
  writer:write_all()
  files.write(kSave, folder .. ".partial/" .. kFile, text)
end

--- After a failure: no rank's part will be complete. Collective; the failure that led here is the one to tell.
local function drop_unfinished(path)
  pcall(files.on_every_rank, function()
    folders.discard(kSave, own_folder(path) .. ".partial")
    return ""
  end)
end

--- Removes this rank's folders of saves of `ranks` ranks, where that differs in number from this run's: also those
--- whose ranks are no more.
local function discard_own(path, ranks)
  for rank = mh.rank(), ranks - 1, mh.world_size() do
    local folder = folder_of(path, rank, ranks)
    for _, suffix in ipairs {".replaced", ".partial", ""} do folders.discard(kSave, folder .. suffix) end
  end
end

--- Gives what is complete on all ranks its name; then what was there before goes. Collective.
local function commit(path)
  files.on_every_rank(function()
    folders.exchange_names(kSave, own_folder(path))
    return ""
  end)
  files.on_every_rank(function()  -- and what other numbers of ranks have left
    folders.settle(kSave, own_folder(path))
    for _, ranks in ipairs(counts_in(kSave, path)) do
      if ranks ~= mh.world_size() then discard_own(path, ranks) end
    end
    return ""
  end)
end

--- A save of which all ranks have begun to write, or have written, their parts: {path, background}.
local Saving = {}
Saving.__index = Saving

--- Names what is complete on all ranks, and returns the path. Collective.
function Saving:wait()
  if self.background then
    local done, problem = pcall(self.background.join, self.background)
    if not done then
      drop_unfinished(self.path)
      error(problem, 0)
    end
  end
  commit(self.path)
  return self.path
end

function Saving:is_done() return self.background == nil or self.background:is_done() end

--- Writes this rank's blocks into PATH/rank-K-of-N.partial, in the background if `async`; wait() of what it returns
--- gives them their name. Collective.
function per_rank.save(path, entries, tensors, async)
  path = files.resolve(path)
  local folder = own_folder(path)
  local saved = tonumber(files.on_first_rank(function()
    if folders.find(kSave, path) then
      fail(("checkpoint.save: '%s' is a checkpoint of whole tensors\n  have  layout = \"per_rank\"\n" ..
          "  fix   choose another name, or "
        .. "remove it first"):format(path))
    end
    return folders.time_text(cfiles.now())
  end))
  local kept = choose(folder)
  files.on_every_rank(function()
    if kept == ".partial" then folders.put_in_place(kSave, folder) end
    if kept == ".replaced" then folders.discard(kSave, folder) end
    folders.settle(kSave, folder)
    return ""
  end)
  local text = mh.json.encode({format = cfiles.format, saved = saved, layout = "per_rank", rank = mh.rank(),
    ranks = mh.world_size(), entries = entries}, 1) .. "\n"
  tensors = parts.summed(tensors)
  local background
  local done, problem = pcall(files.on_every_rank, function()
    background = write_own(folder, text, tensors, async)
    return ""
  end)
  if not done then
    drop_unfinished(path)
    error(problem, 0)
  end
  if background then background:start(text, true) end
  return setmetatable({path = path, background = background}, Saving)
end

-- ---- Which there are ------------------------------------------------------------------------------------------------

--- The complete saves that this rank looks after in the folders of `folder`: a list of {name, ranks, rank, numbers}.
--- Those of other numbers of ranks are shared out.
local function own_saves(who, folder)
  local found, ranks_now = {}, mh.world_size()
  for _, name in ipairs(folders.list_folders(who, folder)) do
    local path = folder .. "/" .. name
    for _, ranks in ipairs(counts_in(who, path)) do
      for rank = mh.rank(), ranks - 1, ranks_now do
        local numbers = numbers_of(folder_of(path, rank, ranks))
        if #numbers > 0 then found[#found + 1] = {name = name, ranks = ranks, rank = rank, numbers = numbers} end
      end
    end
  end
  return found
end

--- The checkpoints in `folder` that are complete on all ranks, as {name, ranks, time}, and the names of those that are
--- not: what kills have left of saves of this many ranks. Collective.
function per_rank.list(who, folder)
  local own = "[]"
  files.on_every_rank(function()
    own = mh.json.encode(own_saves(who, folder))
    return ""
  end)
  local by_save, found, left = {}, {}, {}
  for _, text in ipairs(files.of_all_ranks(own)) do
    for _, one in ipairs(mh.json.decode(text)) do
      local key = one.name .. "/" .. one.ranks
      by_save[key] = by_save[key] or {name = one.name, ranks = one.ranks, lists = {}}
      table.insert(by_save[key].lists, one.numbers)
    end
  end
  for _, key in ipairs(sorted_keys(by_save)) do
    local save = by_save[key]
    local newest = #save.lists == save.ranks and newest_of_all(save.lists)
    if newest then
      found[#found + 1] = {name = save.name, ranks = save.ranks, time = tonumber(newest)}
    elseif save.ranks == mh.world_size() then
      left[#left + 1] = save.name
    end
  end
  return found, left
end

--- Removes this rank's part of the checkpoint at `path`, and the folder when that was the last. `ranks`: of saves of so
--- many ranks only. Collective.
function per_rank.discard(path, ranks)
  files.on_every_rank(function()
    for _, count in ipairs(counts_in(kSave, path)) do
      if not ranks or ranks == count then discard_own(path, count) end
    end
    return os.remove(path) and "gone" or "not empty yet"
  end)
end

-- ---- Loading --------------------------------------------------------------------------------------------------------

--- The entries of checkpoint.json of a folder, and its format.
local function read_entries(folder)
  local text, format = cfiles.read_text(folder)
  return mh.json.decode(text).entries, format
end

local function read_notes(file)
  local all = mh.json.decode((cfiles.header(file)))
  local text = type(all) == "table" and type(all.__metadata__) == "table" and all.__metadata__[kNote]
  if type(text) ~= "string" then
    fail(("checkpoint.load: '%s' is damaged: it does not say what its blocks are"):format(file))
  end
  return mh.json.decode(text)
end

--- Reads this rank's blocks, as _checkpoint_files.reader reads whole tensors. Ranks find other problems; agree() tells
--- them all.
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
  self.problem = ("checkpoint.load: '%s', entry '%s': '%s' is in other blocks\n" ..
      "  have  %s of %s saved, %s expected\n  fix   place it "
    .. "as it was saved, or make a checkpoint of whole tensors first: moonhalo merge %s OTHER"):format(self.folder, key,
        name,
    parts.block_text(note.size, note.begin), parts.block_text(note.shape), parts.block_text(block.shape, begin),
      self.path)
end

--- Notes a problem unless this rank has all of a tensor.
function Blocks:check_whole(key, name)
  local note = self.notes[key][name]
  if note.begin and parts.same_shape(note.size, note.shape) then return true end
  self.problem = self.problem
      or ("checkpoint.load: '%s', entry '%s': '%s' was saved in blocks\n  have  %s of %s\n  fix   load it into "
    .. "something that has the same placements, or make a checkpoint of whole tensors first: moonhalo merge %s " ..
        "OTHER"):format(
    self.folder, key, name == "" and key or name, parts.block_text(note.size, note.begin), parts.block_text(note.shape),
      self.path)
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

function Blocks:verify(keys) self.reader:verify(keys, true) end

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
function per_rank.open(path)
  path = files.resolve(path)
  local folder = own_folder(path)
  files.on_every_rank(function()
    local counts = counts_in(kLoad, path)
    for _, ranks in ipairs(counts) do
      if ranks == mh.world_size() then return "" end
    end
    fail(("checkpoint.load: '%s' was saved by %s ranks, each its blocks\n  have  %d ranks\n" ..
        "  fix   make a checkpoint of whole tensors "
      .. "first: moonhalo merge %s OTHER"):format(path, table.concat(counts, " and by "), mh.world_size(), path))
  end)
  local suffix = choose(folder)
  if not suffix then
    fail(("checkpoint.load: '%s': the ranks have no save in common\n  fix   load an older checkpoint"):format(path))
  end
  local source = setmetatable({path = path, folder = folder .. suffix, notes = {}, reader = cfiles.reader()}, Blocks)
  local opened = {folder = source.folder, reader = source}
  files.on_every_rank(function()
    opened.entries, opened.format = read_entries(source.folder)
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

--- The checkpoint of all ranks under `path` as {entries, parts of every entry: key -> list}: every folder is seen by
--- this rank.
function per_rank.read_all(path)
  path = files.resolve(path)
  local counts = counts_in(kLoad, path)
  local ranks, found, lists = counts[#counts], {}, {}
  if #counts > 1 then
    fail(("checkpoint.merge: '%s' has blocks of %s ranks\n  fix   remove those that are old"):format(path,
        table.concat(counts, " and of ")))
  end
  for rank = 0, ranks - 1 do
    local folder = folder_of(path, rank, ranks)
    lists[rank + 1] = numbers_of(folder)
    if #lists[rank + 1] == 0 then
      fail(("checkpoint.merge: '%s' lacks the blocks of rank %d of %d\n  fix   copy its folder there"):format(path,
          rank, ranks))
    end
    found[rank + 1] = folder
  end
  local number = newest_of_all(lists)
  if not number then
    fail(("checkpoint.merge: '%s' has blocks of different saves\n" ..
        "  fix   copy there what the %d ranks saved last"):format(path, ranks))
  end
  for rank = 0, ranks - 1 do
    local _, suffixes = numbers_of(found[rank + 1])
    found[rank + 1] = found[rank + 1] .. suffixes[number]
  end
  local entries, of_key = read_entries(found[1]), {}
  for key in pairs(entries) do
    local list = {}
    for _, folder in ipairs(found) do
      local file = ("%s/%s.safetensors"):format(folder, key)
      if mh.files.exists(file) then
        list[#list + 1] = {notes = read_notes(file), tensors = mh.safetensors.load(file)}
      end
    end
    if #list > 0 then of_key[key] = list end
  end
  return entries, of_key
end

return per_rank
