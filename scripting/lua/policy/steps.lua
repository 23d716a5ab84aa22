-- SPDX-License-Identifier: Apache-2.0
-- train_step and infer_step of modules that parallelize has divided, and where their samples go.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local at_end = require "moonhalo.internal.at_end"
local plural = require "moonhalo.internal.plural"
local sample_arguments = require "moonhalo.internal.sample_arguments"
local replaced = require "moonhalo.internal.forward"

local all_instances = require("moonhalo.internal.registries").all_instances

local fail, is_tensor = mh.fail, mh.is_tensor
local steps = {}

-- ---- Samples --------------------------------------------------------------------------------------------------------

local function rows_of_units(mesh)
  local placements = {}
  for i, name in ipairs(mesh.names) do placements[i] = name == "unit" and mh.Shard(0) or mh.Replicate() end
  return placements
end

--- This unit's sample as a tensor of all units, and cut within each as the plan says. ShardTensors of the mesh stay as
--- the units cut them.
local function place_tensor(x, where)
  local mesh = where.mesh
  if x:is_shard_tensor() and x.mesh ~= mesh then
    x = mh.local_batch(x, mesh["unit"])
  elseif not x:is_shard_tensor() and x.ndim > 0 then
    x = mh.from_local(x, mesh, rows_of_units(mesh))
  end
  if not x:is_shard_tensor() then return x end
  local placements, cut = x.placements, false
  for i, name in ipairs(x.mesh.names) do
    local dim = where.inputs[name]
    if dim and dim < x.ndim and placements[i]:is_replicate() then placements[i], cut = mh.Shard(dim), true end
  end
  return cut and x:redistribute(placements) or x
end

--- `value`, arguments of forward or samples, with all tensors in it placed on where.mesh; `where.inputs`: the dims that
--- mesh dims cut. What the units would join is checked at first.
function steps.place(value, where)
  local unit = where.mesh["unit"]
  where.check = where.check or sample_arguments.checker("parallelize: " .. where.module:class_name(), unit)
  where.check(value)
  return sample_arguments.map(value, unit, function(x) return place_tensor(x, where) end)
end

--- A sample that counts nothing: of no rows.
local function emptied(value)
  return arguments.map_tensors(value, function(x)
    if x.ndim == 0 or sample_arguments.is_constant(x) then return x end
    return sample_arguments.with_mark_of(x, x:narrow(0, 0, 0))
  end)
end

-- ---- Steps ----------------------------------------------------------------------------------------------------------

--- A list of samples, as many as the plan's micro-batches where it has a number: those that a pipeline takes, and those
--- that others train with. An error in a pipeline is one on those ranks, too, that have begun the step.
local function check_samples(op, samples, state)
  local wanted, text = state.micro_batches, nil
  local split = ("model:%s(mh.split_samples(sample, model.parallel.plan.micro_batches))"):format(op)
  if type(samples) ~= "table" or is_tensor(samples) or #samples == 0 then
    text = ("%s: expected a list of samples, one for each micro-batch\n  have  %s\n  fix   %s"):format(op,
      is_tensor(samples) and "a tensor" or type(samples) == "table" and "a table without a list" or "a "
        .. type(samples), wanted and split or op .. "{sample}")
  elseif wanted and #samples ~= wanted and (state.pipe or op == "train_step") then
    text = ("%s: %s for %s\n  have  a plan with micro_batches = %d\n  fix   %s"):format(op,
      plural(#samples, "sample"), plural(wanted, "micro-batch", "es"), wanted, split)
  end
  if text and state.pipe then state.pipe._engine:refuse_step(op:match("^%a+"), text) end
  if text then fail(text) end
end

--- Finds the samples that count nothing in any unit, and those in this one. Collective where `flags` are given.
local function dummies_of(flags, count, where)
  if flags == nil then return {}, {} end
  if #arguments.flags("train_step", "is_dummy_batch", flags) ~= count then
    fail(("train_step: is_dummy_batch is a list of %d for %s"):format(#flags, plural(count, "sample")))
  end
  local own = {}
  for i, flag in ipairs(flags) do own[i] = flag and 1 or 0 end
  local flags_of_units = mh.from_local(mh.tensor(own):reshape{1, count}, where.mesh, rows_of_units(where.mesh))
  local least = flags_of_units:full_tensor():amin{dim = {0}}:tolist()
  local all, here = {}, {}
  for i = 1, count do all[i], here[i] = least[i] == 1, own[i] == 1 end
  return all, here
end

local function whole(tensor) return tensor:is_shard_tensor() and tensor:full_tensor() or tensor end

local function checked_loss(module, loss)
  if not is_tensor(loss) or loss:numel() ~= 1 then
    fail(("%s: forward of an end2end module returns the loss first, one number; it returned %s"):format(
      module:class_name(), mh._describe(loss)))
  end
  return loss
end

local function scaled_loss(scale_fn, loss)
  if not scale_fn then return loss end
  local scaled = scale_fn(loss)
  if is_tensor(scaled) and scaled:numel() == 1 then return scaled end
  fail(("train_step: scale_fn returns the loss that backward starts from, one number\n  have  %s\n" ..
      "  fix   function(loss) return loss * "
    .. "factor end"):format(mh._describe(scaled)))
end

--- Backward from the loss that forward gave, or from what scale_fn makes of it. Returns the loss of all ranks.
function steps.backward_from(module, loss, scale_fn)
  checked_loss(module, loss)
  scaled_loss(scale_fn, loss):backward()
  return whole(loss:detach())
end

--- forward(sample), or forward's arguments by their names in the sample.
local function call_with(module, names, sample)
  if #names == 1 then return module(sample) end
  if type(sample) ~= "table" or is_tensor(sample) then
    fail(("%s: a sample is a table with the arguments of forward(%s), got %s"):format(module:class_name(),
      table.concat(names, ", "), mh._describe(sample)))
  end
  local values = {}
  for i, name in ipairs(names) do
    if sample[name] == nil then
      fail(("%s: the sample has no '%s', an argument of forward"):format(module:class_name(), name))
    end
    values[i] = sample[name]
  end
  return module(table.unpack(values, 1, #names))
end

local function eager_steps(state)
  local module, names = state.module, state.names
  local function called(sample)
    state.entered = true
    local _ <close> = at_end(function() state.entered = false end)
    return call_with(module, names, sample)
  end
  local function train(samples, all, here, scale_fn)
    module:zero_grad()
    local losses, last = {}, 0
    for i in ipairs(samples) do last = all[i] and last or i end
    for i, sample in ipairs(samples) do
      if state.sums_in_backward then module:set_requires_gradient_sync(i == last) end
      if all[i] then
        losses[i] = mh.zeros{}
      else
        losses[i] = steps.backward_from(module, (called(here[i] and emptied(sample) or sample)), scale_fn)
      end
    end
    return losses
  end
  local function infer(samples)
    local results = {}
    for i, sample in ipairs(samples) do
      local given = table.pack(mh.no_grad(called, sample))
      results[i] = given.n == 1 and given[1] or given
    end
    return results
  end
  return train, infer
end

local function pipeline_steps(state)
  local module, pipe = state.module, state.pipe
  local function loss(...) return checked_loss(module, (module:loss(...))) end
  local function train(samples, all, here, scale_fn)
    local placed = {}
    for i, sample in ipairs(samples) do
      placed[i] = steps.place({here[i] and not all[i] and emptied(sample) or sample}, state)[1]
    end
    return pipe:train_step(placed, loss, {is_dummy_batch = next(all) ~= nil and all or nil, scale_fn = scale_fn})
  end
  local function infer(samples)
    local placed = {}
    for i, sample in ipairs(samples) do placed[i] = steps.place({sample}, state)[1] end
    return pipe:infer_step(placed, loss)
  end
  return train, infer
end

--- train_step(samples, is_dummy_batch, scale_fn): zeroes gradients, and sums up those of the loss of every sample, a
--- micro-batch; returns the losses. is_dummy_batch: booleans, samples that count nothing in this unit (given by all
--- ranks or none). scale_fn: of the loss, before backward. infer_step(samples): what forward gives for each.
--- Collective.
function steps.add(state)
  local module = state.module
  local train, infer = (state.pipe and pipeline_steps or eager_steps)(state)
  local function add(name, step)
    rawset(module, name, mh._method(function(_, samples, ...)
      check_samples(name, samples, state)
      return step(samples, ...)
    end, name, all_instances, "Module"))
  end
  add("train_step", function(samples, is_dummy_batch, scale_fn)
    if scale_fn ~= nil then arguments.callable("train_step", "scale_fn", scale_fn) end
    local all, here = dummies_of(is_dummy_batch, #samples, state)
    return train(samples, all, here, scale_fn)
  end)
  add("infer_step", infer)
  replaced.replace(module, function(forward)
    return function(self, ...)
      if not state.entered then
        fail(("%s: forward of an end2end module is not called, its samples come in micro-batches\n  fix   "
          .. "model:train_step(samples) or model:infer_step(samples)")
          :format(module:class_name()))
      end
      return forward(self, ...)
    end
  end)
end

--- Steps of a module whose forward gives a prediction: errors.
function steps.refuse(module)
  for _, name in ipairs {"train_step", "infer_step"} do
    rawset(module, name, function()
      fail(("%s: %s is for modules whose forward takes a sample and gives the loss\n" ..
          "  fix   ComputeConfig{use_end2end = true}")
        :format(module:class_name(), name))
    end)
  end
end

return steps
