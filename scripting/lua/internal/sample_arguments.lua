-- SPDX-License-Identifier: Apache-2.0
-- What plain tensors mean that a data parallel module is called with: rows that are this rank's own samples, or, marked
-- by mh.constant, one tensor for all samples.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local plural = require "moonhalo.internal.plural"

local training, is_tensor = mh._training, mh.is_tensor
local samples = {}

local function marked(op, tensor, said)
  if not is_tensor(tensor) then
    mh.fail(("%s: expected a tensor, got %s\n  fix   mh.%s(t), for every tensor of a table"):format(op,
      mh._describe(tensor), op))
  end
  training.say(tensor, said)
  return tensor
end

--- mh.constant(t) -> Tensor
---   Marks a tensor as one for all samples (a grid, a mask, class weights), so that a data parallel module copies it
---   instead of joining those of the ranks along dim 0. What is computed from it has no mark.
---   t           Tensor      plain, the same on all ranks
---   returns     Tensor      t itself
---   collective  no
---   errors      TypeError: not a tensor
---   example
---     local mask = mh.ones{4}
---     mh.constant(mask):is_same(mask)    --> true
function samples.constant(t) return marked("constant", t, "constant") end

--- mh.local_batch(t, mesh = nil) -> Tensor
---   Joins every rank's own samples into one tensor, cut along dim 0; ranks may have different numbers of rows. Without
---   a mesh it returns t, marked as this rank's own samples.
---   t           Tensor      plain, [samples, ...]
---   mesh        DeviceMesh?   the mesh, or its data dim, mesh["data"]
---   returns     Tensor      a ShardTensor on the whole mesh
---   collective  over the whole mesh, if one is given
---   errors      TypeError: not a tensor
---   example
---     mh.local_batch(mh.ones{2, 3}, mesh).shape[1] == 2 * mh.world_size()    --> true
function samples.local_batch(t, ...)
  if select("#", ...) == 0 then return marked("local_batch", t, "own") end
  return training.local_batch(t, ...)
end

--- mh.split_samples(samples, parts) -> table
---   Cuts samples into micro-batches of equally many rows, as train_step takes them. Their tensors are views.
---   samples     Tensor|table   [rows, ...], or tables of such tensors; tensors marked by mh.constant, tensors without
---     dims and what is not a tensor go to all micro-batches as they are
---   parts       integer     number of micro-batches, which divides the rows of each tensor
---   returns     table       a list of micro-batches, each built as samples is
---   collective  no for plain tensors; over the mesh of a ShardTensor whose rows are cut
---   errors      TypeError: neither a tensor nor a table; ValueError: rows that cannot be cut into equal parts
---   example
---     local micros = mh.split_samples({mh.ones{6, 2}, target = mh.ones{6}}, 3)
---     #micros, micros[1].target.shape[1]    --> 3  2
function samples.split_samples(value, parts)
  if math.type(parts) ~= "integer" or parts < 1 then
    mh.fail(("split_samples: parts = %s, expected a number of micro-batches"):format(mh._describe(parts)))
  end
  if not is_tensor(value) and (type(value) ~= "table" or getmetatable(value)) then
    mh.fail(("split_samples: expected samples, a tensor or a table of tensors, got %s"):format(mh._describe(value)))
  end
  local micros = {}
  for part = 1, parts do
    micros[part] = arguments.map_tensors(value, arguments.once(function(tensor)
      if tensor.ndim == 0 or samples.is_constant(tensor) then return tensor end
      local rows = tensor.shape[1]
      if rows % parts ~= 0 then
        mh.fail(("split_samples: %s %s not %d equal parts\n  have  a tensor of {%s}\n" ..
          "  fix   a number that divides the rows, or mh.constant(t) for a tensor that all samples share"):format(
          plural(rows, "row"), rows == 1 and "is" or "are", parts, table.concat(tensor.shape, ", ")))
      end
      return samples.with_mark_of(tensor, tensor:narrow(0, (part - 1) * (rows // parts), rows // parts))
    end))
  end
  return micros
end

--- Is `tensor` one for all samples?
function samples.is_constant(tensor) return training.said(tensor) == "constant" end

--- `new` is marked as `old` is.
function samples.with_mark_of(old, new)
  training.say(new, training.said(old))
  return new
end

--- Calls visit(path, tensor) for each tensor in `value`, in one order on all ranks.
local function each(path, value, visit)
  if is_tensor(value) then return visit(path, value) end
  if type(value) ~= "table" or getmetatable(value) then return end
  for key, one in pairs(value) do
    if not (path == "" and key == "n") then
      each(path == "" and tostring(key) or path .. "." .. tostring(key), one, visit)
    end
  end
end

--- Returns check(args): errors for arguments whose meaning is in doubt (engine/training/sample_arguments.h), at the
--- first call with tensors at these places. `who` begins messages. Collective over the whole mesh of `data`.
function samples.checker(who, data)
  local checked = {}
  if data:size() == 1 then return function() end end
  return function(args)
    local tensors, names, signature = {}, {}, {}
    each("", args, function(path, tensor)
      if tensor:is_shard_tensor() and not training.is_slice_of(tensor, data) then return end
      tensors[#tensors + 1], names[#names + 1] = tensor, "argument " .. path
      signature[#signature + 1] = path .. ":" .. training.said(tensor)
    end)
    local key = table.concat(signature, " ")
    if checked[key] then return end
    checked[key] = training.check_samples(tensors, names, data, who)
  end
end

--- `value` with all tensors in it as tensors of all ranks along `data`: constants copied, others as `place(tensor)`
--- says.
function samples.map(value, data, place)
  return arguments.map_tensors(value, arguments.once(function(tensor)
    if samples.is_constant(tensor) then return training.constant_of_samples(tensor, data) end
    return place(tensor)
  end))
end

return samples
