-- SPDX-License-Identifier: Apache-2.0
-- Makani: one dataset `fields` [time, channel, lat, lon], beside it `timestamp` (seconds since 1970), `channel`
-- (names), `lat` and `lon`, each of which older files lack.

local makani = {name = "makani"}

function makani.matches(file)
  for _, path in ipairs(file:datasets()) do
    if path == "fields" then return #file[path].shape == 4 end
  end
  return false
end

local kDims = {"time", "channel", "lat", "lon"}

--- A dataset that is there and has one entry a row of a dim of `fields`.
local function beside(file, name, dim)
  if not file:has(name) then return nil end
  local dataset = file[name]
  return #dataset.shape == 1 and dataset.shape[1] == file["fields"].shape[dim] and dataset or nil
end

function makani.describe(file)
  local shape = file["fields"].shape
  local head = {axis = "time", space = {"lat", "lon"}, steps = shape[1], trajectories = 1, join = "axis",
    coordinates = {}, fields = {fields = {datasets = {"fields"}, dims = kDims, shape = shape}}}
  local time, names = beside(file, "timestamp", 1), beside(file, "channel", 2)
  if time then
    head.times, head.dates, head.calendar = time:read{dtype = "float64"}:tolist(), true, "standard"
  end
  for i, dim in ipairs {"lat", "lon"} do
    local dataset = beside(file, dim, i + 2)
    head.coordinates[dim] = dataset and dataset.is_numeric and dataset:read{dtype = "float64"}:tolist() or nil
  end
  if names and not names.is_numeric then head.fields.fields.channel_names = names:strings() end
  return head
end

return makani
