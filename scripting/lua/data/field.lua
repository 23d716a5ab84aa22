-- SPDX-License-Identifier: Apache-2.0
-- One field of a collection: [steps, channels, space...] over all its files. Dims that are neither steps nor space
-- count channels, whatever their order in the file; values are decoded as each file says (packing is a file's own).

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local strict = require "moonhalo.internal.strict"
local text = require "moonhalo.data.text"

local fail = mh.fail
local Field = {}
local meta = strict.class {name = "Field", methods = Field,
  fields = "axis_at changes channel_dims channel_names channels chunk_space chunk_steps collection datasets dims " ..
      "found_in from layer make missing_in name row_space sample_at space_at space_shape standard_name static_file " ..
  "units values varies version", elements = "field:read(step) gives a step as a tensor"}

--- Dims of a head by what they are: of steps, of trajectories, of space, others count channels.
local function take_dims(self, head, collection)
  self.channels, self.channel_dims, self.space_shape = 1, {}, {}
  local space = {}
  for i, dim in ipairs(collection.space) do space[dim] = i end
  for i, dim in ipairs(head.dims) do
    if dim == collection.axis then
      self.varies, self.axis_at = true, i - 1
    elseif dim == "sample" then
      self.sample_at = i - 1
    elseif space[dim] then
      self.space_shape[space[dim]] = head.shape[i]
    else
      self.channels = self.channels * head.shape[i]
      self.channel_dims[#self.channel_dims + 1] = {name = dim, size = head.shape[i], at = i - 1}
    end
  end
  self.space_at = {}
  for i, dim in ipairs(head.dims) do
    if space[dim] then self.space_at[space[dim]] = i - 1 end
  end
end

--- Sizes, along the dims of space, of rows that are read together, as they are close to each other in files that
--- are not compressed. Parts of the outermost dim of a frame are read alone.
local function row_space(self, head)
  local sizes, outermost = {}, nil
  for i in ipairs(head.dims) do
    if i - 1 ~= self.axis_at and i - 1 ~= self.sample_at then outermost = outermost or i - 1 end
  end
  for i in ipairs(self.collection.space) do
    local at = self.space_at[i]
    sizes[i] = at and (at == outermost and 1 or head.rows[at + 1])
  end
  return sizes
end

--- From the heads of all files; of those that have it, the first says what it is.
function Field.new(collection, name, files, heads)
  local self = setmetatable({name = name, collection = collection}, meta)
  local head, number, scalar
  for i, one in ipairs(heads) do
    if one.fields[name] and not head then
      head, number, scalar, self.found_in = one.fields[name], i, one.scalar_axis, files[i]
    end
  end
  self.layer = collection.layer_of_field and collection.layer_of_field[name]
  self.missing_in = collection.lacking and collection.lacking[name]
  for i, one in ipairs(heads) do
    -- A field that does not change is read from the first file that has it, if not all have.
    if not one.fields[name] and not self.layer then
      if collection.layer_of_field then
        self.static_file = number
      elseif not collection.static_file[i] then
        self.missing_in = self.missing_in or files[i]
      end
    end
  end
  if collection.static_file[number] then self.static_file, self.missing_in = number, nil end
  self.dims, self.units, self.standard_name, self.channel_names = head.dims, head.units, head.standard_name,
      head.channel_names
  self.varies, self.values, self.changes = scalar or false, head.values, head.changes
  take_dims(self, head, collection)
  -- Chunks of compressed data are read whole: how many steps each holds, and its size along the dims of space.
  self.chunk_steps, self.chunk_space = head.chunks and self.axis_at and head.chunks[self.axis_at + 1] or 1, nil
  if head.chunks then
    self.chunk_space = {}
    for i in ipairs(collection.space) do
      self.chunk_space[i] = self.space_at[i] and head.chunks[self.space_at[i] + 1]
    end
  end
  if head.rows then self.row_space = row_space(self, head) end
  self.datasets = {}
  for i, one in ipairs(heads) do self.datasets[i] = one.fields[name] and one.fields[name].datasets end
  return self
end

--- A tensor as a field of a collection: in the place of a file, "tensor". See added_fields.lua.
function Field.added(collection, name, head, version)
  local of = head.fields[name]
  local self = setmetatable({name = name, collection = collection, dims = of.dims, units = of.units, values = of.values,
    changes = of.changes, version = version, varies = false,
    chunk_steps = 1, static_file = "tensor", datasets = {tensor = {name}}}, meta)
  take_dims(self, of, collection)
  return self
end

--- Makes a field of a function and what it reads: {from, make, channels, space_shape, varies, chunk_steps, units,
--- version}.
function Field.made(collection, name, parts)
  local self = setmetatable({name = name, collection = collection, dims = {}, channel_dims = {}}, meta)
  for key, value in pairs(parts) do self[key] = value end
  if self.channels > 1 then self.channel_dims[1] = {name = "channel", size = self.channels} end
  return self
end

--- True if it has all dims of space.
function Field:is_full()
  for i in ipairs(self.collection.space) do
    if not self.space_shape[i] then return false end
  end
  return true
end

--- The dataset's selection of a step of a run, from 0.
local function selection(self, run, step)
  if self.make or self.values then
    fail(("Field:select: '%s' is in no file\n  have  %s\n" ..
        "  fix   take read(step), or give dims = {names} to file:write"):format(self.name, tostring(self)))
  end
  local file, sample, at = self.collection:_locate(run, step, self)
  local datasets = self.datasets[file]
  local path = self.collection.files[file]
  local parts = {}
  for i in ipairs(self.dims) do
    parts[i] = i - 1 == self.axis_at and tostring(at) or i - 1 == self.sample_at and tostring(sample) or ":"
  end
  local dataset = mh.h5.open(path)[#datasets > 1 and datasets[sample + 1] or datasets[1]]
  return #parts > 0 and dataset[table.concat(parts, ", ")] or dataset
end

--- The run and the step that are meant, both from 0, after a check of the options.
local function check_step(self, call, step, options, known)
  local op = "Field:" .. call
  options = arguments.options(op, options)
  for key in pairs(options) do arguments.choice(op, "option", key, known) end
  local run, runs = options.trajectory or 0, self.collection.runs
  step = step or 0
  if math.type(run) ~= "integer" or math.type(step) ~= "integer" or not runs[run + 1] or step < 0
      or step >= runs[run + 1].steps then
    fail(("%s: step %s of trajectory %s\n  have  %d trajectories, %d steps in the first\n" ..
      "  fix   both count from 0"):format(op, text.of(step), text.of(run), #runs, runs[1].steps))
  end
  return run, step
end

--- The dataset's selection of step `step` (0) of a trajectory (0): nothing is read. For file:write(name, y, {like =
--- ...}).
function Field:select(step, options)
  return selection(self, check_step(self, "select", step, options, {"trajectory"}))
end

--- Step `step` (0) of a run (0), decoded: [channels, space...], plain, on the rank that asks. Not collective.
function Field:read(step, options)
  local run
  run, step = check_step(self, "read", step, options, {"dtype", "trajectory"})
  options = options or {}
  if self.make or self.values then
    return require("moonhalo.data.made").whole_reader(self.collection, self.name, options.dtype or "float32",
        0){{run, self.varies and step or 0}}["0"]
  end
  local values = selection(self, run, step):read{dtype = options.dtype or "float32", decode = true}
  local order, shape = {}, {self.channels}
  local function place(at)
    local before = 0  -- dims that the selection has dropped
    if self.axis_at and self.axis_at < at then before = before + 1 end
    if self.sample_at and self.sample_at < at then before = before + 1 end
    return at - before
  end
  for _, dim in ipairs(self.channel_dims) do order[#order + 1] = place(dim.at) end
  for i in ipairs(self.collection.space) do
    if self.space_at[i] then
      order[#order + 1], shape[#shape + 1] = place(self.space_at[i]), self.space_shape[i]
    end
  end
  return values:permute(order):reshape(shape)
end

--- True where the first channel of a step has a value: bool [space...], for mh.cut_sizes. Not collective.
function Field:mask(step) return self:read(step)["0"]:isnan():logical_not() end

function meta.__tostring(self)
  local parts = {}
  if self.sample_at then parts[#parts + 1] = "sample" end
  if self.varies then parts[#parts + 1] = self.collection.axis end
  for _, dim in ipairs(self.channel_dims) do parts[#parts + 1] = dim.name .. " " .. dim.size end
  for i, dim in ipairs(self.collection.space) do
    if self.space_shape[i] then parts[#parts + 1] = dim .. " " .. self.space_shape[i] end
  end
  local source = self.make and ", made of " .. table.concat(self.from, ", ") or self.values and ", a tensor" or ""
  return ("%s [%s]%s%s"):format(self.name, table.concat(parts, ", "), self.units and " " .. self.units or "", source)
end

return Field
