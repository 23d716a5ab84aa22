-- SPDX-License-Identifier: Apache-2.0
-- Fields that a function makes of other fields. The function gets the values of these, [frames, channels, space...],
-- and a place: what it may know of where they are. In batches they are ShardTensors, cut as the batch; elsewhere
-- whole and plain.

local mh = require "moonhalo"
local Sources = require "moonhalo.data.sources"
local text = require "moonhalo.data.text"

local fail = mh.fail
local made = {}

--- Names of the fields that are read for the field `name`, each once: itself, or those that it is made of in the end.
function made.leaves(data, name, found, seen)
  found, seen = found or {}, seen or {}
  local field = data.fields[name]
  for _, one in ipairs(field.from or {}) do made.leaves(data, one, found, seen) end
  if not field.make and not seen[name] then
    seen[name], found[#found + 1] = true, name
  end
  return found
end

local function shape_text(shape) return "[" .. table.concat(shape, ", ") .. "]" end

--- Refuses all that is not a tensor of the field's shape, made of the function's arguments.
local function check(field, value, like)
  local wanted = {like.shape[1], field.channels, table.unpack(field.space_shape)}
  local function refuse(got, fix)
    fail(("add_field: the function of '%s' gave %s\n  have  %s expected, [frames, channels, space...]\n" ..
        "  fix   %s"):format(field.name, got, shape_text(wanted), fix))
  end
  if not mh.is_tensor(value) then refuse(text.of(value), "return a tensor of that shape") end
  if shape_text(value.shape) ~= shape_text(wanted) then
    refuse("shape " .. shape_text(value.shape), "keep frames and space as they are; channels = "
        .. tostring(value.shape[2] or 1) .. " of add_field says how many it makes")
  end
  if value:is_complex() then refuse("complex numbers", "return their real and imaginary parts as channels") end
  if like:is_shard_tensor() and not value:is_shard_tensor() then
    refuse("a plain tensor", "compute it of the arguments, which are cut as the batch, or of place.coordinates")
  end
  return value:to(like.dtype)
end

--- The values of a field; leaf(name) gives those of one that is read.
function made.value(data, name, leaf, place)
  local field = data.fields[name]
  if not field.make then return leaf(name) end
  local values = {}
  for i, one in ipairs(field.from) do values[i] = made.value(data, one, leaf, place) end
  local like = values[1]
  values[#values + 1] = place
  return check(field, field.make(table.unpack(values)), like)
end

--- {frames = {{run, step}, ...}} in the words of a user: what is known of each frame, and of the dims of space.
--- `coordinates`: by dim, tensors that broadcast against the values. `rows`: by dim, {first, end} of what this rank
--- has.
function made.place(data, frames, coordinates, rows)
  local place = {coordinates = coordinates, rows = rows, steps = {}, trajectories = {}, times = {}}
  for i, frame in ipairs(frames) do
    local times = data.runs[frame[1] + 1].times
    place.trajectories[i], place.steps[i], place.times[i] = frame[1], frame[2], times and times[frame[2] + 1]
  end
  return place
end

--- Coordinates of these rows of a dim of space (the i-th of all), as a tensor [1, ..., rows, ..., 1]; nil where there
--- are none.
function made.coordinates_of(data, i, first, last, kind)
  local all, shape = rawget(data.coordinates, data.space[i]), {}
  if not all then return nil end
  for k in ipairs(data.space) do shape[k] = k == i and last - first or 1 end
  return mh.tensor(all, kind):narrow(0, first, last - first):reshape(shape)
end

--- read(frames) -> plain values [frames, channels, space...] of a field, whole in space, on this rank alone: frames =
--- {{run, step}, ...}. Not collective.
function made.whole_reader(data, name, dtype, cache_bytes)
  local leaves, field = made.leaves(data, name), data.fields[name]
  local sources, zeros, coordinates, rows = Sources.new(data, leaves), {}, {}, {}
  for i, dim in ipairs(data.space) do
    zeros[i], rows[dim] = 0, {0, field.space_shape[i]}
    coordinates[dim] = made.coordinates_of(data, i, 0, field.space_shape[i], {dtype = dtype, device = "cpu"})
  end
  local reader = sources:reader(zeros, field.space_shape, dtype, cache_bytes)
  return function(frames)
    return mh.no_grad(function()
      return made.value(data, name, function(leaf) return reader:read(sources:places(leaf, frames),
        data.fields[leaf].channels) end, made.place(data, frames, coordinates, rows))
    end)
  end
end

return made
