-- SPDX-License-Identifier: Apache-2.0
-- How batches [batch, channel, space...] are on a mesh: cut = {batch = "data", latitude = {"domain", sizes}}. Mesh
-- dims that are not named hold copies. Ranks that differ in other mesh dims than that of the batch read the same
-- samples: they form a group, which may share out whole frames.

local mh = require "moonhalo"
local strict = require "moonhalo.internal.strict"
local text = require "moonhalo.data.text"

local fail = mh.fail
local BatchCut = {}
local meta = strict.class {name = "BatchCut", methods = BatchCut,
  fields = "batch cuts given kept_group mesh shape space taken"}

--- Sizes as Shard(dim) makes them: all blocks but the last ones have ceil(rows / parts).
local function even_sizes(rows, parts)
  local sizes, each = {}, (rows + parts - 1) // parts
  for i = 1, parts do sizes[i] = math.max(0, math.min(each, rows - (i - 1) * each)) end
  return sizes
end

local function check_sizes(dim, sizes, parts, rows)
  local sum, all = 0, type(sizes) == "table" and #sizes == parts
  for _, size in ipairs(all and sizes or {}) do
    all = all and math.type(size) == "integer" and size >= 0
    sum = sum + (type(size) == "number" and size or 0)
  end
  if not all or sum ~= rows then
    fail(("loader: sizes of '%s' do not fit\n  have  %s, a sum of %s; %d rows, %d blocks\n" ..
      "  fix   give an integer of rows a block, whose sum is %d"):format(dim,
      type(sizes) == "table" and mh.json.encode(sizes) or text.of(sizes), tostring(sum), rows, parts, rows))
  end
  return sizes
end

--- `cut` of a mesh over dims of space of these sizes; `before`: a BatchCut whose entries hold where `cut` has none.
function BatchCut.new(mesh, space, shape, cut, before)
  local self = setmetatable({mesh = mesh, space = space, shape = shape, cuts = {}, taken = {}}, meta)
  local places, names = {}, mesh and mesh.names or {}
  for i, dim in ipairs(space) do places[dim] = i end
  local function size_of(dim, name)
    for _, known in ipairs(names) do
      if known == name then return mesh:size(name) end
    end
    fail(("loader: '%s' is cut over %s, which is not a dim of the mesh%s\n  have  (%s)\n" ..
      "  fix   name one of these, or give a mesh that has it"):format(dim, text.of(name),
      mh.did_you_mean(tostring(name), names), table.concat(names, ", ")))
  end
  local merged = {}
  for key, value in pairs(before and before.given or {}) do merged[key] = value end
  for key, value in pairs(cut) do merged[key] = value end
  self.given = merged
  for dim, given in pairs(merged) do
    local name = type(given) == "table" and given[1] or given
    local parts = size_of(dim, name)
    if self.taken[name] then
      fail(("loader: '%s' and '%s' are both cut over '%s'\n  have  a mesh of (%s)\n" ..
        "  fix   give each a mesh dim of its own"):format(self.taken[name], dim, name, table.concat(names, ", ")))
    end
    self.taken[name] = dim
    if dim == "batch" then
      self.batch = name
    elseif places[dim] then
      local sizes = type(given) == "table" and given[2]
      self.cuts[places[dim]] = {mesh_dim = name,
        sizes = sizes and check_sizes(dim, sizes, parts, shape[places[dim]]) or even_sizes(shape[places[dim]], parts)}
    else
      fail(("loader: '%s' is not a dim of the fields%s\n  have  batch, %s\n  fix   name one of these in cut"):format(
        tostring(dim), mh.did_you_mean(tostring(dim), space), table.concat(space, ", ")))
    end
  end
  return self
end

local kWorthIt = 1.3  -- as IoPlan has it
local kMostRead = 1.5  -- as plan_runs has it
BatchCut.kBytes = {float16 = 2, bfloat16 = 2, float32 = 4, float64 = 8}

--- Bytes of one whole frame of a field.
function BatchCut:frame_bytes(field, dtype)
  local bytes = field.channels * BatchCut.kBytes[dtype]
  for _, size in ipairs(self.shape) do bytes = bytes * size end
  return bytes
end

--- True where members of a group read whole frames of a field for each other. Collective over the mesh the first time.
function BatchCut:shares(field)
  if self:group() == nil then return false end
  return field.chunk_space ~= nil and self:cost(field) >= kWorthIt or field.row_space ~= nil
      and self:touched(field.row_space) > kMostRead
end

local kMore = 3  -- chunks

--- Bytes of whole frames that a member of a group may have to hold beyond an equal share of those of all fields of a
--- set, as it reads all frames of a chunk.
function BatchCut:beyond_share(set, dtype)
  local most = 0
  for _, name in ipairs(set:_leaves()) do
    local field = set.data.fields[name]
    if self:shares(field) then most = math.max(most, field.chunk_steps * self:frame_bytes(field, dtype)) end
  end
  return kMore * most
end

local function range_of(sizes, index)
  local begin = 0
  for i = 1, index do begin = begin + sizes[i] end
  return begin, begin + sizes[index + 1]
end

--- First rows and ends of this rank's block of space.
function BatchCut:rows()
  local begins, ends = {}, {}
  for i, size in ipairs(self.shape) do
    begins[i], ends[i] = 0, size
    local cut = self.cuts[i]
    if cut then begins[i], ends[i] = range_of(cut.sizes, self.mesh:coordinate(cut.mesh_dim)) end
  end
  return begins, ends
end

--- Elements of the largest block of space of any rank.
function BatchCut:largest()
  local elements = 1
  for i, size in ipairs(self.shape) do
    elements = elements * (self.cuts[i] and math.max(table.unpack(self.cuts[i].sizes)) or size)
  end
  return elements
end

--- Returns this rank's first sample of a batch of `count`, that after its last, and all sizes.
function BatchCut:samples(count)
  if not self.batch then return 0, count, {count} end
  local sizes = even_sizes(count, self.mesh:size(self.batch))
  local first, last = range_of(sizes, self.mesh:coordinate(self.batch))
  return first, last, sizes
end

--- Placements over some mesh dims; `batch_sizes`: of dim 0.
local function placements(self, names, batch_sizes)
  local list = {}
  for i, name in ipairs(names) do
    list[i] = mh.Replicate()
    if name == self.batch then list[i] = mh.Shard(0, batch_sizes) end
    for dim, cut in pairs(self.cuts) do
      if cut.mesh_dim == name then list[i] = mh.Shard(dim + 1, cut.sizes) end
    end
  end
  return list
end

--- The batch of which `block` is this rank's part: a ShardTensor, or without a mesh the block itself. Collective.
function BatchCut:assemble(block, batch_sizes)
  if not self.mesh then return block end
  local shape = {0, block.shape[2], table.unpack(self.shape)}
  for _, size in ipairs(batch_sizes) do shape[1] = shape[1] + size end
  return mh._data.from_block(block, self.mesh, placements(self, self.mesh.names, batch_sizes), shape)
end

--- This rank's part of a batch of any placements, as assemble() takes it. Collective.
function BatchCut:block_of(batch, batch_sizes)
  if not self.mesh then return batch end
  return batch:redistribute(placements(self, self.mesh.names, batch_sizes)):to_local()
end

--- A tensor [1, ..., rows of dim `i` of space, ..., 1] of which `block` has this rank's rows, as ShardTensor; or the
--- block itself.
function BatchCut:assemble_rows(block, i)
  if not self.mesh then return block end
  local list, shape = {}, {table.unpack(block.shape)}
  for k, name in ipairs(self.mesh.names) do
    local cut = self.cuts[i]
    list[k] = cut and cut.mesh_dim == name and mh.Shard(i - 1, cut.sizes) or mh.Replicate()
  end
  shape[i] = self.shape[i]
  return mh._data.from_block(block, self.mesh, list, shape)
end

--- Counts how often the members of a group touch pieces of these sizes, all together, if each reads its own block.
function BatchCut:touched(piece)
  local cost = 1
  for i, size in ipairs(self.shape) do
    local chunk, cut = piece[i] or size, self.cuts[i]
    local touched, begin = 0, 0
    for _, rows in ipairs(cut and cut.sizes or {}) do
      if rows > 0 then touched = touched + (begin + rows - 1) // chunk - begin // chunk + 1 end
      begin = begin + rows
    end
    if cut then cost = cost * touched / ((size + chunk - 1) // chunk) end
  end
  return cost
end

--- Counts how often they decode compressed chunks of a field.
function BatchCut:cost(field)
  if not field.chunk_space then return 1 end
  local cost = self:touched(field.chunk_space)
  for _, name in ipairs(self.mesh and self.mesh.names or {}) do
    if not self.taken[name] then cost = cost * self.mesh:size(name) end
  end
  return cost
end

local function make_group(self)
  if not self.mesh then return nil end
  local names, size, index, first = {}, 1, 0, self.mesh.names[1]
  for _, name in ipairs(self.mesh.names) do
    if name ~= self.batch then
      names[#names + 1] = name
      size, index = size * self.mesh:size(name), index * self.mesh:size(name) + self.mesh:coordinate(name)
    end
  end
  if size == 1 then return nil end
  local target = #names == self.mesh.ndim and self.mesh or self.mesh[#names == 1 and names[1] or names]
  local flat = target
  if #names > 1 then
    local parts = self.batch and self.mesh:size(self.batch) or 1
    if parts * size ~= mh.world_size() or (self.batch and self.batch ~= first) then return nil end
    flat = mh.init_device_mesh(self.mesh.device_type, {parts, size}, {"samples", "frames"})["frames"]
  end
  local to = placements(self, names, {})
  for i, name in ipairs(names) do
    if not self.taken[name] then to[i] = mh.Replicate() end
  end
  local function spread(frames, counts)
    local shape = {0, frames.shape[2], table.unpack(self.shape)}
    for _, count in ipairs(counts) do shape[1] = shape[1] + count end
    local all = mh._data.from_block(frames, flat, {mh.Shard(0, counts)}, shape)
    local moved = flat == target and all:redistribute(to) or all:redistribute(target, to)
    local rows = moved:to_local()
    all:free()
    moved:free()
    return rows
  end
  return {size = size, index = index, spread = spread}
end

--- {size, index, spread}: the group of this rank. spread(frames, counts) makes of every member's whole frames [frames,
--- channels, space...] the rows of this rank of all frames, those of the first member first. Nil where there is none,
--- or where the mesh is not arranged so that its members stand in a row. Collective over the mesh the first time.
function BatchCut:group()
  if self.kept_group == nil then self.kept_group = make_group(self) or false end
  return self.kept_group or nil
end

return BatchCut
