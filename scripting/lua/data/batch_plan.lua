-- SPDX-License-Identifier: Apache-2.0
-- From samples to requests for frames, and from frames to the tensors of a batch. A frame that several windows of a
-- batch share is read once. Frames of compressed fields whose chunks a cut would make several ranks decode are read
-- whole, each by one rank of the group, and sent as blocks when the batch is put together.

local mh = require "moonhalo"
local made = require "moonhalo.data.made"
local Sources = require "moonhalo.data.sources"
local strict = require "moonhalo.internal.strict"
local transformed = require "moonhalo.data.transformed"

local BatchPlan = {}
local meta = strict.class {name = "BatchPlan", methods = BatchPlan,
  fields = "coordinates cut decoded group has_made late more names number options owners queue reads rows set shared "
      .. "sources"}

--- Coordinates of space, cut as the batch, and this rank's rows, by dim.
local function space_of(self)
  local data, begins, ends = self.set.data, self.cut:rows()
  local coordinates, rows = {}, {}
  for i, dim in ipairs(data.space) do
    local block = made.coordinates_of(data, i, begins[i], ends[i],
        {dtype = self.options.dtype, device = self.cut.mesh and self.cut.mesh.device or "cpu"})
    coordinates[dim], rows[dim] = block and self.cut:assemble_rows(block, i), {begins[i], ends[i]}
  end
  return coordinates, rows
end

--- `options`: dtype, normalize (name -> {mean, std}: lists), missing (nil: an error), transform, seed, cache_bytes.
function BatchPlan.new(set, cut, options)
  local self = setmetatable({set = set, cut = cut, options = options, names = set:_leaves(), shared = {}, number = {},
      owners = {}, reads = {}, late = {}}, meta)
  for _, name in ipairs(set:fields()) do
    self.reads[name] = {}
    for _, leaf in ipairs(made.leaves(set.data, name)) do
      self.reads[name][leaf], self.late[leaf] = true, self.late[leaf] or set.data.fields[name].make ~= nil
    end
    self.late[name] = self.late[name] or set.data.fields[name].make ~= nil
    self.has_made = self.has_made or self.late[name]
  end
  if self.has_made or options.transform then self.coordinates, self.rows = space_of(self) end
  self.group = cut:group()
  self.more = cut:beyond_share(set, options.dtype)
  self.decoded = {}  -- chunks that each member was given to decode
  for i = 1, self.group and self.group.size or 0 do self.decoded[i] = 0 end
  self.sources = Sources.new(set.data, self.names)
  local begins, ends = cut:rows()
  local zeros, readers, fields, on_host = {}, {}, {}, {dtype = options.dtype, device = "cpu"}
  for i in ipairs(cut.shape) do zeros[i] = 0 end
  for i, name in ipairs(self.names) do
    local field = set.data.fields[name]
    self.shared[name] = cut:shares(field)
    self.owners[name] = {}
    local kind = self.shared[name] and "whole" or "block"
    readers[kind] = readers[kind] or (self.shared[name] and self.sources:reader(zeros, cut.shape, options.dtype,
        options.cache_bytes // 2)
      or self.sources:reader(begins, ends, options.dtype, options.cache_bytes // 2))
    local scale = not self.late[name] and options.normalize and options.normalize[name] or nil
    fields[i] = {name = name, reader = readers[kind], channels = field.channels,
      may_be_missing = options.missing ~= nil or mh.backend() == "fake",  -- fake tensors have no values
      mean = scale and mh.tensor(scale.mean, on_host), std = scale and mh.tensor(scale.std, on_host)}
    self.number[name] = i - 1
  end
  self.queue = mh._data.queue(fields)
  return self
end

--- The frames that `samples` need of a field, each once: {{run, step}, ...}, and their numbers by run and step.
local function frames_of(self, name, samples)
  local frames, seen = {}, {}
  for _, part in ipairs {self.set.inputs, self.set.targets, self.set.static} do
    for _, one in ipairs(part.fields) do
      for _, sample in ipairs(self.reads[one][name] and samples or {}) do
        for _, offset in ipairs(part.steps) do
          local step = self.set.data.fields[name].varies and sample[2] + offset or 0
          local key = sample[1] << 40 | step
          if not seen[key] then
            frames[#frames + 1] = {sample[1], step}
            seen[key] = true
          end
        end
      end
    end
  end
  table.sort(frames, function(a, b)
    if a[1] ~= b[1] then return a[1] < b[1] end
    return a[2] < b[2]
  end)
  return frames
end

--- Frames of each chunk, as {key, frame, ...}.
local function by_chunk(self, field, frames)
  local chunks, known = {}, {}
  for _, frame in ipairs(frames) do
    local run, step = table.unpack(frame)
    local _, _, at = self.set.data:_locate(run, field.varies and step or 0, field)
    local key = run << 40 | step - at % field.chunk_steps
    if not known[key] then
      known[key] = {key = key}
      chunks[#chunks + 1] = known[key]
    end
    table.insert(known[key], frame)
  end
  return chunks
end

--- Frames by the member of the group that reads them: those of one chunk by one member. It is the one that decoded it
--- before, and may have kept it, unless that would hold more than an equal share and some chunks (beyond_share); else
--- the one that holds least. `held`: bytes of the whole frames of each member in the batches under way, which are added
--- to.
local function dealt(self, name, frames, held)
  local field, decoded, owners, by_member, all = self.set.data.fields[name], self.decoded, self.owners[name], {}, 0
  for i, bytes in ipairs(held) do by_member[i], all = {}, all + bytes end
  local frame_bytes, more = self.cut:frame_bytes(field, self.options.dtype), self.more
  for _, chunk in ipairs(by_chunk(self, field, frames)) do
    local least, bytes, owner = 1, #chunk * frame_bytes, owners[chunk.key]
    for i = 2, #held do
      if held[i] < held[least] or held[i] == held[least] and decoded[i] < decoded[least] then least = i end
    end
    all = all + bytes
    if not owner or held[owner] + bytes > all / #held + more then
      owner = least
      decoded[owner] = decoded[owner] + 1
    end
    owners[chunk.key], held[owner] = owner, held[owner] + bytes
    table.move(chunk, 1, #chunk, #by_member[owner] + 1, by_member[owner])
  end
  return by_member
end

--- Begins to read the batch of `samples` (numbers, those of all ranks), beside those `under_way`. Not collective.
function BatchPlan:begin(samples, under_way)
  local first, last, sizes = self.cut:samples(#samples)
  local batch = {samples = samples, sizes = sizes, anchors = {}, position = {}, counts = {}, bytes = {}}
  local held = {}
  for i in ipairs(self.decoded) do
    held[i] = 0
    for _, other in ipairs(under_way) do held[i] = held[i] + other.bytes[i] end
    batch.bytes[i] = -held[i]
  end
  for i = first + 1, last do batch.anchors[#batch.anchors + 1] = {self.set:at(samples[i])} end
  local requests = {}
  for i, name in ipairs(self.names) do
    local frames = frames_of(self, name, batch.anchors)
    local mine, position = frames, {}
    if self.shared[name] then
      local counts, at = {}, 0
      for member, list in ipairs(dealt(self, name, frames, held)) do
        counts[member] = #list
        for _, frame in ipairs(list) do
          position[frame[1] << 40 | frame[2]], at = at, at + 1
        end
        if member == self.group.index + 1 then mine = list end
      end
      batch.counts[name] = counts
    else
      for at, frame in ipairs(frames) do position[frame[1] << 40 | frame[2]] = at - 1 end
    end
    batch.position[name] = position
    requests[i] = {self.number[name], self.sources:places(name, mine)}
  end
  for i, bytes in ipairs(held) do batch.bytes[i] = batch.bytes[i] + bytes end
  batch.ticket = self.queue:submit(requests)
  return batch
end

--- The values of a field that is read, at `offset` steps from the anchors of this rank's samples.
local function selected(self, batch, name, offset, frames)
  local index, varies = {}, self.set.data.fields[name].varies
  for i, anchor in ipairs(batch.anchors) do
    index[i] = batch.position[name][anchor[1] << 40 | (varies and anchor[2] + offset or 0)]
  end
  local from = frames[name]
  return from:index_select(0, mh.tensor(index, {dtype = "int64", device = from.device}))
end

--- The values of a field that a function makes, computed on the batch as it is on the mesh. NaN is an error where
--- it would be one of a file.
local function computed(self, batch, name, offset, frames)
  local data, all = self.set.data, {}
  for i, sample in ipairs(batch.samples) do
    local run, anchor = self.set:at(sample)
    all[i] = {run, data.fields[name].varies and anchor + offset or 0}
  end
  local function leaf(one) return self.cut:assemble(selected(self, batch, one, offset, frames), batch.sizes) end
  local block = self.cut:block_of(made.value(data, name, leaf, made.place(data, all, self.coordinates, self.rows)),
      batch.sizes)
  if self.options.missing == nil then
    local absent = block:isnan():any():item()
    mh._files.on_every_rank(function()
      if absent and mh.backend() ~= "fake" then
        mh.fail(("loader: the function of '%s' made NaN\n  have  values of %s\n" ..
          "  fix   correct the function, or say what becomes of missing values by missing ="):format(name,
          table.concat(data.fields[name].from, ", ")))
      end
      return "good"
    end)
  end
  return block
end

--- (value - mean) / std of fields that the queue leaves as they are, since functions read them, or make them.
local function normalized(self, name, piece)
  local scale = self.late[name] and self.options.normalize and self.options.normalize[name]
  if not scale then return piece end
  local shape, kind = {#scale.mean}, {dtype = piece.dtype, device = piece.device}
  for i = 3, piece.ndim do shape[i - 1] = 1 end
  return (piece - mh.tensor(scale.mean, kind):reshape(shape)) / mh.tensor(scale.std, kind):reshape(shape)
end

--- One tensor [samples of this rank, channels, rows...] of a part of the windows, or nil for an empty part. A piece at
--- a time, for the sake of the memory that was stated.
local function part_of(self, batch, part, frames)
  local all, channel = nil, 0
  for _, offset in ipairs(part.steps) do
    for _, name in ipairs(part.fields) do
      local piece = self.set.data.fields[name].make and computed(self, batch, name, offset, frames)
          or selected(self, batch, name, offset, frames)
      piece = normalized(self, name, piece)
      local channels = piece.shape[2]
      if channels == #part.channels then return piece end
      if not all then
        local shape = {table.unpack(piece.shape)}
        shape[2] = #part.channels
        all = mh.empty(shape, {dtype = piece.dtype, device = piece.device})
      end
      all:narrow(1, channel, channels):copy_(piece)
      piece:free()
      channel = channel + channels
    end
  end
  return all
end

--- The frames of a field: those read, or what the group makes of them. Large tensors are freed at once, not when Lua
--- collects them, for the sake of the memory that was stated.
local function frames_read(self, batch, name, read)
  if self.cut.mesh and self.cut.mesh.device_type ~= "cpu" and mh.backend() ~= "fake" then
    local moved = read:to(self.cut.mesh.device)
    read:free()
    read = moved
  end
  if not self.shared[name] then return read end
  local rows = self.group.spread(read, batch.counts[name])
  read:free()
  return rows
end

--- {inputs, targets, static, mask, input_mask, index, times} of a batch that was begun. Collective over all ranks.
function BatchPlan:finish(batch)
  return mh.no_grad(function()
    local frames = {}
    for i, read in ipairs(batch.ticket:wait()) do
      frames[self.names[i]] = frames_read(self, batch, self.names[i], read)
    end
    local missing, result = self.options.missing, transformed.new_batch()
    for _, kind in ipairs {"inputs", "targets", "static"} do
      local block = part_of(self, batch, self.set[kind], frames)
      if block and type(missing) == "table" then
        local absent = block:isnan()
        if missing.mask and kind ~= "static" then
          result[kind == "targets" and "mask" or "input_mask"] = self.cut:assemble(absent:logical_not(), batch.sizes)
        end
        local filled = block:masked_fill(absent, missing.fill)
        block:free()
        absent:free()
        block = filled
      end
      result[kind] = block and self.cut:assemble(block, batch.sizes)
    end
    for _, name in ipairs(self.names) do frames[name]:free() end
    result.index = mh.tensor(batch.samples, {dtype = "int64"})
    for i, sample in ipairs(batch.samples) do result.times[i] = self.set:time(sample) end
    if self.options.transform then
      return transformed.by(self.options.transform, result, {coordinates = self.coordinates, rows = self.rows,
          epoch = batch.epoch, seed = self.options.seed})
    end
    return result
  end)
end

return BatchPlan
