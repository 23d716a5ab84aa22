-- SPDX-License-Identifier: Apache-2.0
-- The checkpoints that a folder has, of both layouts, by the time of their save.

local mh = require "moonhalo"
local folders = require "moonhalo.internal.checkpoint_folders"
local per_rank = require "moonhalo.internal.checkpoint_per_rank"

local files = mh._files
local history = {}

--- {name, time as text} of those of whole tensors; of format 1, which say no time, with 0.
local function whole_ones(who, folder)
  local found = {}
  for i, name in ipairs(folders.list(who, folder)) do
    local time = folders.saved_at(folders.find(who, folder .. "/" .. name))
    found[i] = {name = name, time = time or folders.time_text(0)}
  end
  return found
end

--- A list of {name, time, ranks}, the last saved last, ranks of layout "per_rank" alone, one for each number that saved
--- it, and the names of what kills have left of layout "per_rank". Collective.
local function by_time(who, folder)
  local found = mh.json.decode(files.on_first_rank(function() return mh.json.encode(whole_ones(who, folder)) end))
  for _, one in ipairs(found) do one.time = tonumber(one.time) end
  local others, left = per_rank.list(who, folder)
  table.move(others, 1, #others, #found + 1, found)
  table.sort(found, function(a, b)
    if a.time ~= b.time then return a.time < b.time end
    if #a.name ~= #b.name then return #a.name < #b.name end  -- step9 before step10
    return a.name < b.name
  end)
  return found, left
end

--- Collective.
function history.latest(folder)
  folder = files.resolve(folder)
  local found = by_time("checkpoint.latest", folder)
  return #found > 0 and folder .. "/" .. found[#found].name or nil
end

--- Removes all but the `count` newest of the checkpoints beside `path` whose names differ from its own in digits only,
--- nothing if that is nil. Collective.
function history.keep(path, count)
  if not count then return end
  local folder, own = path:match("^(.*)/([^/]*)$")
  if not folder then folder, own = ".", path end
  local function is_alike(name) return name:gsub("%d+", "0") == own:gsub("%d+", "0") end
  local kept, number, found, left = {}, 0, by_time("checkpoint.save", folder)
  for i = #found, 1, -1 do
    local one, old = found[i], folder .. "/" .. found[i].name
    if is_alike(one.name) and not kept[one.name] and number < count then
      kept[one.name], number = true, number + 1
    elseif is_alike(one.name) and one.ranks then
      per_rank.discard(old, one.ranks)  -- perhaps what a newer save of the same name by other ranks has left
    elseif is_alike(one.name) then
      files.on_first_rank(function() folders.discard("checkpoint.save", old) end)
    end
  end
  for _, name in ipairs(left) do
    if is_alike(name) then per_rank.discard(folder .. "/" .. name, mh.world_size()) end
  end
end

return history
