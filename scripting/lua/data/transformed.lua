-- SPDX-License-Identifier: Apache-2.0
-- Batches, and how they pass through a function of the user's, the option `transform` of a loader.

local mh = require "moonhalo"
local strict = require "moonhalo.internal.strict"
local text = require "moonhalo.data.text"

local fail = mh.fail
local transformed = {}
local kBatch = strict.record("batch", "inputs targets static mask input_mask index times")
local kParts = {"inputs", "targets", "static", "mask", "input_mask"}

--- an integer below 2^53 a sample, of the loader's seed, the epoch and the sample alone.
local function seeds_of(index, seed, epoch) return mh._permuted(index:to("cpu"), 1 << 53, seed, epoch):tolist() end

--- Tensors of the loader must stay tensors of these samples, on the same mesh.
local function check(old, new)
  local function refuse(what, have, fix)
    fail(("loader: transform gave %s\n  have  %s\n  fix   %s"):format(what, have, fix))
  end
  if type(new) ~= "table" then
    refuse(mh.is_tensor(new) and "a tensor" or text.of(new), "no batch",
        "let it return the batch that it was given, changed or not")
  end
  for _, name in ipairs(kParts) do
    local before, now = old[name], new[name]
    if before ~= nil then
      if not mh.is_tensor(now) then
        refuse(("%s in the place of batch.%s"):format(text.of(now), name), "a tensor before", "leave batch." .. name
            .. " in the table, or change it")
      end
      if now.ndim == 0 or now.shape[1] ~= #old.times then
        refuse(("batch.%s of shape [%s]"):format(name, table.concat(now.shape, ", ")),
            ("%d samples"):format(#old.times), "keep the first dim, one row a sample")
      end
      if before:is_shard_tensor() ~= now:is_shard_tensor() then
        refuse(("a %s as batch.%s"):format(now:is_shard_tensor() and "ShardTensor" or "plain tensor", name),
          before:is_shard_tensor() and "a ShardTensor before" or "a plain tensor before",
          "compute it of the batch's tensors; mh.distribute_tensor makes a ShardTensor of a plain one")
      end
    end
  end
  if getmetatable(new) == nil then setmetatable(new, kBatch) end
  return new
end

--- A batch without tensors yet.
function transformed.new_batch() return setmetatable({times = {}}, kBatch) end

--- Returns the batch that `transform` makes of one. `place`: {coordinates, rows, epoch, seed}, as the loader's docs
--- have it.
function transformed.by(transform, batch, place)
  place.seeds, place.seed = seeds_of(batch.index, place.seed, place.epoch), nil
  local old = {}
  for _, name in ipairs(kParts) do old[name] = batch[name] end
  old.times = batch.times
  return check(old, transform(batch, place))
end

return transformed
