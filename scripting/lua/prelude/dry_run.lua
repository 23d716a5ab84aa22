-- SPDX-License-Identifier: Apache-2.0
-- A dry run (--backend fake) writes no file: what would write one counts files and bytes instead, which the program
-- reports at the end. Readers stay. HDF5 files and checkpoints do all else that a run does, so that their messages and
-- memory are planned: mh.checkpoint.save asks mh._dry_run_save only to count.

local mh = ...
if mh.backend() ~= "fake" then return end

local files, internal = rawget(mh, "files"), rawget(mh, "_files")
local note = internal.note_unwritten

local function bytes_of(value)
  if mh.is_tensor(value) then return mh._storage_bytes{value} end
  return type(value) == "string" and #value or 8
end

--- Lists of {name, tensor} by entry.
rawset(mh, "_dry_run_save", function(tensors)
  local list = {}
  for _, own in pairs(tensors) do
    for _, named in ipairs(own) do list[#list + 1] = named[2] end
  end
  note(mh._storage_bytes(list))
end)

files.make_folder = function(_) end
rawget(mh, "_run").make_folder = function() return true end
files.write_png = function(_, image) note(bytes_of(image)) end
files.write_npy = function(_, tensor) note(bytes_of(tensor)) end
internal.write = function(_, _, text) note(#text) end
rawget(mh, "safetensors").save = function(_, tensors, _metadata)
  local list = {}
  for _, tensor in pairs(tensors) do list[#list + 1] = tensor end
  note(mh._storage_bytes(list))
end

rawget(mh, "_pt").writer = function()
  local bytes = 0
  local writer = {}
  function writer:value(x)
    local kinds = {["nil"] = true, number = true, boolean = true, string = true}
    local fits = kinds[type(x)] or x == mh.none or mh.is_tensor(x)
    if fits then bytes = bytes + bytes_of(x) end
    return fits
  end
  for _, name in ipairs {"begin_list", "end_list", "begin_dict", "end_dict"} do writer[name] = function() end end
  function writer:finish() note(bytes) end
  return writer
end

local h5 = rawget(mh, "h5")
rawset(mh, "_unwritten", {open_h5 = h5.open, open_file = io.open})  -- tests write what they read
h5.open = rawget(mh, "_open_dry")

-- ---- Lua's own ------------------------------------------------------------------------------------------------------

local open_file = io.open
io.open = function(path, mode)  -- luacheck: ignore
  if mode == nil or not mode:find "[wa+]" then return open_file(path, mode) end
  if mode:find "^r" then  -- the file must be there
    local there <close>, problem = open_file(path)
    if not there then return nil, problem end
  end
  note(0)
  return open_file("/dev/null", mode)
end
os.remove = function() return true end  -- luacheck: ignore
os.rename = function() return true end  -- luacheck: ignore
