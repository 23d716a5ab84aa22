-- SPDX-License-Identifier: Apache-2.0
-- The part of `moonhalo inspect` that recognises layouts of mh.data and draws: inspect(path, variable, picture)
-- prints the layout, and with a variable writes a quick look at it. "name[3, :, :]" chooses a part; else the first
-- of all but the last two dims.

local mh = require "moonhalo"
local layouts = require "moonhalo.data.layouts"
local sorted_keys = require "moonhalo.internal.sorted_keys"
local plot = mh.plot

local kMost = 1200  -- pixels of a picture along a dim

local function print_layout(file)
  local layout
  local good, head = pcall(function()
    layout = layouts.choose(file)
    return layout.describe(file, {})
  end)
  if not good then  -- a file need not be a data set
    print(("layout %s: mh.data cannot open it: %s"):format(layout and layout.name or "unknown",
        (tostring(head):match("[^\n]*"))))
    return
  end
  local names = sorted_keys(head.fields)
  local text = ("layout %s: %d %s"):format(layout.name, #names, #names == 1 and "field" or "fields")
  if #names > 0 then
    text = text .. " (" .. table.concat(names, ", ", 1, math.min(#names, 8)) .. (#names > 8 and ", ...)" or ")")
  end
  if head.axis then text = text .. (", %d steps of %s"):format(head.steps or 0, head.axis) end
  if head.space and #head.space > 0 then text = text .. ", space " .. table.concat(head.space, " x ") end
  print(text)
end

--- The selection to draw: of at most two dims, with steps that leave no more than a picture shows.
local function part_of(data, slices)
  local parts = {}
  if slices then return data[slices] end
  local shape = data.shape
  for dim, size in ipairs(shape) do
    if dim <= #shape - 2 then
      parts[dim] = "0"
    else
      parts[dim] = size > kMost and "::" .. (size + kMost - 1) // kMost or ":"
    end
  end
  return data[table.concat(parts, ", ")]
end

--- First and last of the coordinates of a dim; nil where there are none that differ, or not `size` where that is given.
local function ends_of(file, group, dim, size)
  for _, name in ipairs {group .. dim, dim} do
    if dim ~= "" and file:has(name) then
      local data = file[name]
      if data.shape and #data.shape == 1 and data.shape[1] > 1 and data.shape[1] == (size or data.shape[1])
          and not tostring(data):find(", string ", 1, true) then
        local first, last = data[0]:read{dtype = "float64"}:item(),
            data[data.shape[1] - 1]:read{dtype = "float64"}:item()
        if first ~= last then return {first, last} end
      end
    end
  end
end

local function draw(file, variable, picture)
  local name, slices = variable:match("^(.-)%[(.*)%]$")
  name = name or variable
  local data = file[name]
  if not data.dtype then
    mh.fail(("inspect: '%s' is a group\n  have  %s\n  fix   name a dataset in it"):format(name, picture))
  end
  local part = #data.shape == 0 and data or part_of(data, slices)
  local dims = part.dims
  if #part.shape < 1 or #part.shape > 2 then
    mh.fail(("inspect: '%s' has %d dims to draw\n  have  shape {%s}\n" ..
      "  fix   choose two of them, as in --plot '%s[0, :, :]'"):format(
      variable, #part.shape, table.concat(part.shape, ", "), name))
  end
  local values = part:read{decode = true}:to("float64")
  local group = name:match("^(.*/)") or ""
  if #part.shape == 1 then
    plot.lines(picture, {{y = values}}, {title = variable, ylabel = data.units, xlabel = dims[1] ~= "" and dims[1]
        or nil})
  else
    local rows = ends_of(file, group, dims[1], slices and part.shape[1])
    local columns = ends_of(file, group, dims[2], slices and part.shape[2])
    plot.maps(picture, {{data = values, title = variable, x = columns, y = rows}},
      {unit = data.units ~= "" and data.units or nil, origin = rows and rows[1] < rows[2] and "lower" or "upper"})
  end
  print("written " .. picture)
end

return function(path, variable, picture)
  local file <close> = mh.h5.open(path)
  print_layout(file)
  if variable ~= "" then draw(file, variable, picture) end
end
