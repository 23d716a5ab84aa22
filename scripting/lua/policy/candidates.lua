-- SPDX-License-Identifier: Apache-2.0
-- What both searches of the policy "autodist" need of a candidate: its placements, its mesh, and zeros in the place of
-- parameters and arguments.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local policies = require "moonhalo.policy.policies"
local sample_arguments = require "moonhalo.internal.sample_arguments"

local is_tensor = mh.is_tensor
local candidates = {}

--- True if an argument is a field, [batch, channels, first spatial dim, second, ...].
function candidates.has_field(graph)
  for _, described in pairs(graph.arguments) do
    if select(2, described:gsub(",", "")) >= 3 then return true end
  end
  return false
end

--- Placements for `sizes` = {pp =, dp =, domain =, columns =, tp =} (columns may be missing); mesh dims of one rank are
--- left out.
function candidates.placed_for(sizes, stored, graph)
  local placed = {mesh = {{}, {}}, inputs = {}, stored = stored and "dp" or nil}
  for _, name in ipairs {"pp", "dp", "domain", "columns", "tp"} do
    if (sizes[name] or 1) > 1 then table.insert(placed.mesh[1], sizes[name]); table.insert(placed.mesh[2], name) end
  end
  if #placed.mesh[1] == 0 then placed.mesh = {{1}, {"dp"}} end
  if sizes.dp > 1 then placed.inputs.dp = 0 end
  if sizes.domain > 1 then placed.inputs.domain = 2 end
  if (sizes.columns or 1) > 1 then placed.inputs.columns = 3 end
  if sizes.tp > 1 then placed.parameter = policies.tensor_cuts(graph, placed.mesh[2]) end
  if sizes.pp > 1 then placed.stages = policies.stages_of(graph, sizes.pp) end
  return placed
end

--- Names of the parameters of a module, by tensor.
function candidates.names_of(module)
  local names = {}
  for name, parameter in module:named_parameters() do names[parameter] = name end
  return names
end

--- The mesh of `units` units, each with the candidate's. `device`: mh.device() if nil.
function candidates.mesh_of(candidate, units, per_byte, device)
  local sizes, names = {units}, {"unit"}
  for i, size in ipairs(candidate.placed.mesh[1]) do sizes[i + 1], names[i + 1] = size, candidate.placed.mesh[2][i] end
  local mesh = mh.init_device_mesh(device or mh.device(), sizes, names)
  mesh:set_macs_per_byte(per_byte)
  return mesh
end

--- Parameters and buffers of zeros, placed as the candidate says.
function candidates.zeros_on(mesh, candidate, names)
  local placed = candidate.placed
  return function(tensor)
    local list, placements = (placed.parameter or {})[names[tensor]] or {}, {mh.Replicate()}
    local number = 0
    for i, name in ipairs(placed.mesh[2]) do
      if name ~= "pp" then number = number + 1 end
      placements[i + 1] = name ~= "pp" and list[number] or mh.Replicate()
    end
    if candidate.stored and tensor.requires_grad then
      local dim = mh._training.storage_dim(tensor.shape, list, candidate.sizes.dp)
      if dim then placements[2] = mh.Stored(dim) end
    end
    local zeros = mh.zeros(tensor.shape, {dtype = tensor.dtype, mesh = mesh, placements = placements})
    return tensor.requires_grad and zeros:requires_grad_(true) or zeros
  end
end

--- A number that every element counts in: the loss, or squares, which sums over ranks cannot pass through.
local function sum_of(value)
  if is_tensor(value) and value.requires_grad then return value.ndim == 0 and value or value:square():sum() end
  if is_tensor(value) then return nil end
  if type(value) ~= "table" or getmetatable(value) then return nil end
  local total
  for _, one in pairs(value) do
    local part = sum_of(one)
    total = total and part and total + part or total or part
  end
  return total
end

--- Forward and backward of each of `batches`, lists of `count` arguments, and the sums of gradients that are left.
function candidates.find_gradients(module, batches, count)
  for _, args in ipairs(batches) do
    local total = sum_of({module(table.unpack(args, 1, count))})
    if not total then mh.fail("parallelize: policy 'autodist': nothing that forward returns requires a gradient") end
    total:backward()
  end
  mh.finish_grad_sync(module)
end

--- Arguments of zeros, the rows of all units together. (What is not a tensor stays; so do single numbers.)
function candidates.zero_batch(values, mesh)
  return arguments.map_tensors(values, arguments.once(function(x)
    if x.ndim == 0 then return x end
    local shape, placements = x.shape, {}
    for i = 1, mesh.ndim do placements[i] = mh.Replicate() end
    if not sample_arguments.is_constant(x) then
      shape[1], placements[1] = shape[1] * mesh:size("unit"), mh.Shard(0)
    end
    return sample_arguments.with_mark_of(x, mh.zeros(shape, {dtype = x.dtype, mesh = mesh, placements = placements}))
  end))
end

--- Placed samples, made of their blocks again: ranks send as much for plain samples in every step.
function candidates.join_blocks(samples)
  return arguments.map_tensors(samples, arguments.once(function(x)
    if not x:is_shard_tensor() or x.ndim == 0 or sample_arguments.is_constant(x) then return x end
    return sample_arguments.with_mark_of(x, mh.from_local(x:to_local(), x.mesh, x.placements))
  end))
end

return candidates
