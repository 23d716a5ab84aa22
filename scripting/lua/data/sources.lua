-- SPDX-License-Identifier: Apache-2.0
-- Where frames are: a frame is one step of a field, [channels, space...], and its place is {source, trajectory,
-- step} as io/fields/frames.h has it. Fields that functions make have none; those that they are made of do
-- (made.leaves).

local mh = require "moonhalo"
local strict = require "moonhalo.internal.strict"

local Sources = {}
local meta = strict.class {name = "Sources", methods = Sources,
  fields = "collection list number"}

--- The sources of some fields of a collection, over all its files.
function Sources.new(collection, names)
  local self = setmetatable({collection = collection, list = {}, number = {}}, meta)
  for _, name in ipairs(names) do
    local field, of_files = collection.fields[name], {}
    local channel_dims = {}
    for i, dim in ipairs(field.channel_dims) do channel_dims[i] = dim.at end
    local files = {}
    for file in ipairs(collection.files) do files[file] = file end
    if field.values then files = {field.static_file or 1} end
    for _, file in ipairs(files) do
      of_files[file] = #self.list
      for _, dataset in ipairs(field.datasets[file] or {}) do
        self.list[#self.list + 1] = {path = collection.files[file], values = field.values, changes = field.changes,
          dataset = dataset, step_dim = field.axis_at or -1,
          sample_dim = field.sample_at or -1, channel_dims = channel_dims, space_dims = field.space_at,
          version = collection.versions[file]}
      end
    end
    self.number[name] = of_files
  end
  return self
end

--- Place of a field's frame of a step of a run (from 0).
function Sources:place(name, run, step)
  local field = self.collection.fields[name]
  local file, sample, at = self.collection:_locate(run, field.varies and step or 0, field)
  local source = self.number[name][file]
  if #field.datasets[file] > 1 then source = source + sample end
  return source, field.sample_at and sample or 0, field.varies and at or 0
end

--- int64 [n, 3] of {run, step} pairs.
function Sources:places(name, frames)
  local flat = {}
  for i, frame in ipairs(frames) do
    flat[3 * i - 2], flat[3 * i - 1], flat[3 * i] = self:place(name, frame[1], frame[2])
  end
  return mh.tensor(flat, {dtype = "int64", device = "cpu"}):reshape{#frames, 3}
end

--- A reader of rows [begins, ends) of space.
function Sources:reader(begins, ends, dtype, cache_bytes)
  return mh._data.reader(self.list, begins, ends, dtype, cache_bytes)
end

return Sources
