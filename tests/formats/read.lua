-- SPDX-License-Identifier: Apache-2.0
-- S18: reads every array of the files in a folder in every way and writes what it got: `moonhalo run read.lua FOLDER
-- NAME ...` makes FOLDER/NAME.out.h5, which check_formats.py compares with what it wrote.
local mh = require "moonhalo"
local folder = arg[1]
local ranks = mh.world_size()
local mesh = mh.init_device_mesh("cpu", {ranks}, {"domain"})

-- Blocks of any sizes: one rank has nothing.
local function uneven(size)
  local sizes, left = {}, size
  for rank = 1, ranks do
    sizes[rank] = rank == ranks and left or rank == 2 and 0 or math.min(left, (size + 1) // 2)
    left = left - sizes[rank]
  end
  return sizes
end

local function every_second(shape)
  local parts = {}
  for dim, size in ipairs(shape) do parts[dim] = size > 2 and dim % 2 == 1 and "1:" or size > 2 and "::2" or ":" end
  return table.concat(parts, ", ")
end

for i = 2, #arg do
  local file = mh.h5.open(folder .. "/" .. arg[i])
  local out = mh.h5.open(folder .. "/" .. arg[i] .. ".out.h5", "w")
  for _, name in ipairs(file:datasets()) do
    local data = file[name]
    if not tostring(data):find("string", 1, true) then
      local read = {whole = mh.scatter_tensor(data, mesh, {mh.Replicate()}), read = data:read()}
      if data.dtype ~= mh.bool then read.decoded = mh.scatter_tensor(data, mesh, {mh.Replicate()}, {decode = true}) end
      for dim, size in ipairs(data.shape) do
        read["cut" .. dim - 1] = mh.scatter_tensor(data, mesh, {mh.Shard(dim - 1, uneven(size))})
      end
      if data.ndim > 0 then
        local part = data[every_second(data.shape)]
        read.slice = mh.scatter_tensor(part, mesh, {mh.Shard(part.ndim - 1)})
        if data.shape[1] > 0 then read.index = mh.scatter_tensor(data[data.shape[1] - 1], mesh, {mh.Replicate()}) end
      end
      for how, x in pairs(read) do out:write(name .. "/" .. how, x) end
      out:set_attr(name .. "#dims", table.concat(data.dims, " "))
    elseif data.ndim > 0 then
      out:set_attr("strings:" .. name, table.concat(data:strings(), "|"))
    end
    for key, value in pairs(data.attrs) do
      if type(value) ~= "table" or #value > 0 then out:set_attr(name .. "@" .. key, value) end
    end
  end
  out:close()
end
