-- SPDX-License-Identifier: Apache-2.0
-- Heads of many files as one text, for other ranks and for the index that data.open keeps: what files have in common,
-- most often their coordinates and fields, is there once, and equally spaced times are three numbers.

local mh = require "moonhalo"

local fail = mh.fail
local heads = {}

local kFormat = 2
local kCommon = {"coordinates", "fields"}

--- {first, step, count} that gives the very same numbers, or the list itself.
local function packed_times(times)
  if not times or #times < 4 then return times end
  local first, step = times[1], times[2] - times[1]
  for i, time in ipairs(times) do
    if time ~= first + (i - 1) * step then return times end
  end
  return {first = first, step = step, count = #times}
end

local function unpacked_times(times)
  if not times or not times.count then return times end
  local list = {}
  for i = 1, times.count do list[i] = times.first + (i - 1) * times.step end
  return list
end

--- {common, entries} of a list of {head, ...}, whose other members stay as they are.
function heads.pack(entries)
  local common, numbers, packed = {}, {}, {}
  for i, entry in ipairs(entries) do
    local one, head = {}, {}
    for key, value in pairs(entry) do one[key] = value end
    for key, value in pairs(entry.head) do head[key] = value end
    for _, name in ipairs(kCommon) do
      local part = head[name]
      if not numbers[part] then  -- most heads share their tables already
        local text = mh.json.encode(part)
        if not numbers[text] then
          common[#common + 1] = part
          numbers[text] = #common
        end
        numbers[part] = numbers[text]
      end
      head[name] = numbers[part]
    end
    head.times = packed_times(head.times)
    one.head, packed[i] = head, one
  end
  return {common = common, entries = packed}
end

--- The list that pack() was given. Heads share tables where they are the same.
function heads.unpack(packed)
  for _, entry in ipairs(packed.entries) do
    for _, name in ipairs(kCommon) do entry.head[name] = packed.common[entry.head[name]] end
    entry.head.times = unpacked_times(entry.head.times)
  end
  return packed.entries
end

--- The entries of an index by path, if it was made with the same options; none where there is no index yet.
function heads.read_index(path, options)
  if not mh.files.exists(path) then return {} end
  local read, found = pcall(mh.json.load, path)
  if not read or type(found) ~= "table" or type(found.heads_of) ~= "string" then
    fail(("data.open: '%s' is not an index of heads\n  have  a file that another program wrote, or a part of one\n" ..
        "  fix   give index another path, or remove "
      .. "the file"):format(path))
  end
  if found.format ~= kFormat or found.heads_of ~= options then return {} end
  local known = {}
  for _, entry in ipairs(heads.unpack(found.packed)) do known[entry.path] = entry end
  return known
end

--- Writes the entries of an index, {path, version, layout, head} each.
function heads.write_index(path, options, entries)
  local folder = path:match("^(.*)/[^/]*$")
  if folder and folder ~= "" then mh.files.make_folder(folder) end
  mh._files.write("data.open", path, mh.json.encode{format = kFormat, heads_of = options, packed = heads.pack(entries)}
      .. "\n")
end

return heads
