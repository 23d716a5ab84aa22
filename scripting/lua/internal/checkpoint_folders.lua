-- SPDX-License-Identifier: Apache-2.0
-- Folders of checkpoints: which are there, when they were saved, and how they get and lose their names. A dry run
-- changes no folder. It notes what it would have saved and removed, so that it finds what a run would find.

local mh = require "moonhalo"

local cfiles = mh._checkpoint_files
local folders = {}

for _, name in ipairs {"find", "list", "list_folders", "settle", "exchange_names", "put_in_place", "discard"} do
  folders[name] = cfiles[name]
end

--- Returns a time as a string, of the same length for all times.
function folders.time_text(time) return ("%017.6f"):format(time) end

--- Returns when the checkpoint in `folder` was saved, as a string; nil where none is that says so.
function folders.saved_at(folder)
  local file = folder .. "/checkpoint.json"
  local saved = mh.files.exists(file) and mh.json.load(file)
  local time = type(saved) == "table" and saved.saved
  return type(time) == "number" and folders.time_text(time) or nil
end

--- Notes that the checkpoint of a dry run is complete. Nothing else has to be done in a run.
function folders.note_saved(_) end

if mh.backend() ~= "fake" then return folders end

local times = {}  -- of what this rank has saved, by path; false: it has removed it

local function add_own(found, folder, name_of)
  local names, known = {}, {}
  for _, name in ipairs(found) do
    if times[folder .. "/" .. name] ~= false then names[#names + 1], known[name] = name, true end
  end
  local added = {}
  for path, time in pairs(times) do
    local name = time and path:sub(1, #folder + 1) == folder .. "/" and path:sub(#folder + 2):match(name_of)
    if name and not known[name] then added[#added + 1], known[name] = name, true end
  end
  table.sort(added)
  return table.move(added, 1, #added, #names + 1, names)
end

local saved_at = folders.saved_at
function folders.saved_at(folder)
  if times[folder] == nil then return saved_at(folder) end
  return times[folder] or nil
end

function folders.note_saved(path) times[path] = folders.time_text(cfiles.now()) end
function folders.find(who, path)
  if times[path] == nil then return cfiles.find(who, path) end
  return times[path] and path or nil
end
function folders.list(who, folder) return add_own(cfiles.list(who, folder), folder, "^[^/]+$") end
function folders.list_folders(who, folder) return add_own(cfiles.list_folders(who, folder), folder, "^[^/]+") end
function folders.settle(_, _) end
function folders.put_in_place(_, _) end
function folders.exchange_names(_, path) folders.note_saved(path) end
function folders.discard(_, path) times[path] = false end

return folders
