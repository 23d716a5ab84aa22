-- SPDX-License-Identifier: Apache-2.0
-- PDEBench's four families: `tensor` [trajectory, time, x, ...] (advection, Burgers, Darcy); a dataset a variable
-- (`density`, `Vx`, ...) of the same shape (compressible flow); a group a trajectory, "0000/data" [time, x, ...,
-- component] (diffusion-reaction, shallow water); `velocity`, `particles`, `force` [trajectory, time, x, y, component]
-- (incompressible flow). Names alone tell them apart, so each is asked for by what only it has.

local trajectory_times = require "moonhalo.data.trajectory_times"

local pdebench = {name = "pdebench"}

local kSpace = {"x", "y", "z"}
local kFlow = {"density", "pressure", "Vx", "Vy", "Vz"}

local function seeds(file)
  local found = {}
  for _, key in ipairs(file:keys()) do
    if key:match("^%d+$") and file:has(key .. "/data") and file:has(key .. "/grid") then found[#found + 1] = key end
  end
  return found
end

local function family(file)
  if file:has("velocity") and file:has("t") and (file:has("particles") or file:has("force")) then
    return "incompressible"
  end
  if file:has("x-coordinate") and file:has("tensor") then return "tensor" end
  if file:has("x-coordinate") and file:has("density") then return "flow" end
  return #seeds(file) > 0 and "seeds" or nil
end

function pdebench.matches(file) return family(file) ~= nil end

local function numbers(dataset) return dataset:read{dtype = "float64"}:tolist() end

--- Times of the steps, and those of each trajectory where they differ and may.
local function times_of(file, path, steps, options)
  local values = file[path]:read{dtype = "float64"}
  -- t-coordinate holds the ends of the steps: one more than there are.
  if values.shape[values.ndim] > steps then values = values:narrow(-1, 0, steps) end
  return trajectory_times(file, path, values, options)
end

local function space_of(count)
  local dims = {}
  for i = 1, count do dims[i] = kSpace[i] end
  return dims
end

local function dims_of(first, space, component)
  local dims = {table.unpack(first)}
  table.move(space, 1, #space, #dims + 1, dims)
  dims[#dims + 1] = component and "component" or nil
  return dims
end

local readers = {}

function readers.tensor(file, head)
  local shape = file["tensor"].shape
  head.space = space_of(#shape - 2)
  head.trajectories, head.steps = shape[1], shape[2]
  head.fields.tensor = {datasets = {"tensor"}, dims = dims_of({"sample", "time"}, head.space), shape = shape}
  if file:has("nu") and #file["nu"].shape == #shape - 1 then
    head.fields.nu = {datasets = {"nu"}, dims = dims_of({"sample"}, head.space), shape = file["nu"].shape}
  end
end

function readers.flow(file, head)
  local shape = file["density"].shape
  head.space = space_of(#shape - 2)
  head.trajectories, head.steps = shape[1], shape[2]
  for _, name in ipairs(kFlow) do
    if file:has(name) then
      head.fields[name] = {datasets = {name}, dims = dims_of({"sample", "time"}, head.space), shape = file[name].shape}
    end
  end
end

function readers.seeds(file, head)
  local keys, datasets = seeds(file), {}
  for i, key in ipairs(keys) do datasets[i] = key .. "/data" end
  local shape = file[datasets[1]].shape
  head.space = space_of(#shape - 2)
  head.trajectories, head.steps, head.grid = #keys, shape[1], keys[1] .. "/grid/"
  head.fields.data = {datasets = datasets, dims = dims_of({"time"}, head.space, true), shape = shape}
end

function readers.incompressible(file, head)
  local shape = file["velocity"].shape
  head.space = space_of(#shape - 3)
  head.trajectories, head.steps = shape[1], shape[2]
  for _, name in ipairs {"velocity", "particles"} do
    if file:has(name) then
      head.fields[name] = {datasets = {name}, dims = dims_of({"sample", "time"}, head.space, true),
          shape = file[name].shape}
    end
  end
  if file:has("force") then
    head.fields.force = {datasets = {"force"}, dims = dims_of({"sample"}, head.space, true),
        shape = file["force"].shape}
  end
end

function pdebench.describe(file, options)
  local head = {axis = "time", join = "trajectories", coordinates = {}, fields = {}}
  readers[family(file)](file, head)
  local time = head.grid and head.grid .. "t" or file:has("t-coordinate") and "t-coordinate" or "t"
  if file:has(time) then head.times, head.times_of = times_of(file, time, head.steps, options) end
  for _, dim in ipairs(head.space) do
    local path = head.grid and head.grid .. dim or dim .. "-coordinate"
    if file:has(path) then head.coordinates[dim] = numbers(file[path]) end
  end
  head.grid = nil
  return head
end

return pdebench
