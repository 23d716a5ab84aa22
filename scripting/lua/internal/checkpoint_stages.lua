-- SPDX-License-Identifier: Apache-2.0
-- Pipelines in checkpoints: every rank writes and reads what its own stages have, and nothing of others comes to it.

local mh = require "moonhalo"
local pipelines = require "moonhalo.internal.pipeline"
local values = require "moonhalo.internal.checkpoint_values"
local state = require "moonhalo.nn.state"
local sorted_keys = require "moonhalo.internal.sorted_keys"

local fail, files = mh.fail, mh._files
local stages = {}

--- The pipeline that `value` is, or that mh.parallelize made of it; nil if there is none.
function stages.pipeline_of(value)
  if pipelines.is_pipeline(value) then return value end
  local parallel = type(value) == "table" and rawget(value, "parallel")
  return parallel and pipelines.is_pipeline(parallel.pipeline) and parallel.pipeline or nil
end

--- The pipeline of which an optimizer trains this rank's stages, or nil.
function stages.pipeline_of_optimizer(optimizer)
  local pipe, others = pipelines.trained_by(optimizer)
  if pipe and others then
    fail("checkpoint: an optimizer has parameters of a pipeline and others, too\n" ..
        "  fix   make one optimizer for the pipeline's "
      .. "parameters and another for the rest")
  end
  return pipe
end

--- Returns a list of the `own` of every place along a pipeline, and all their tensors, {name, tensor, owner}, of device
--- "meta" where they are at other places. `tensors`: {name, tensor} of this rank. Collective over all ranks.
function stages.join(pipe, own, tensors)
  local described, given, all = {}, {}, {}
  for i, pair in ipairs(tensors) do described[i] = {pair[1], pair[2].dtype, pair[2].shape} end
  local texts = files.of_all_ranks(mh.json.encode({place = pipe._place, values = own, tensors = described}))
  for rank, text in ipairs(texts) do
    local one = mh.json.decode(text)
    if not given[one.place + 1] then
      given[one.place + 1] = {owner = rank - 1, values = one.values, tensors = one.tensors}
    end
  end
  local by_place = {}
  for place, one in ipairs(given) do
    by_place[place] = one.values
    for i, tensor in ipairs(one.tensors) do
      local here = place == pipe._place + 1 and tensors[i][2]
      all[#all + 1] = {tensor[1], here or mh.empty(tensor[3], {dtype = tensor[2], device = "meta"}), one.owner}
    end
  end
  return by_place, all
end

--- A pipeline's tensors under the names that the whole model gives them: the entry for checkpoint.json, and `tensors`
--- grows.
function stages.pack_model(pipe, tensors)
  local own, entry = {}, {}
  for name, tensor in pipe:_own_state(true) do own[#own + 1] = {name, tensor} end
  local _, all = stages.join(pipe, {}, own)
  table.sort(all, function(a, b) return a[1] < b[1] end)
  for _, one in ipairs(all) do
    entry[one[1]], tensors[#tensors + 1] = {["$tensor"] = one[1]}, one
  end
  return entry
end

--- The groups of all places as one; fails unless they have the same options.
local function merged_groups(by_place)
  local merged, texts = {}, {}
  for place, one in ipairs(by_place) do
    for i, group in ipairs(one.groups) do
      local text = mh.json.encode(group.options)
      if place == 1 then merged[i], texts[i] = group.options, text end
      if text ~= texts[i] or #one.groups ~= #by_place[1].groups then
        fail(("checkpoint.save: the optimizers of places 0 and %d of a pipeline differ in groups or options\n" ..
            "  fix   make them "
          .. "with the same groups and options on all ranks"):format(place - 1))
      end
      merged[i].params = table.move(group.params, 1, #group.params, #(merged[i].params or {}) + 1, merged[i].params
          or {})
    end
  end
  return merged
end

--- As optimizers.pack, of an optimizer that trains this rank's stages.
function stages.pack_optimizer(pipe, optimizer, tensors)
  local dict, names, elsewhere = optimizer:state_dict(), pipe:_names_of(optimizer)
  local own, mine, groups = {}, {}, {}
  for i, of_parameter in ipairs(dict.state) do
    if not elsewhere[i] then
      own[names[i]] = {}
      for _, field in ipairs(sorted_keys(of_parameter)) do
        own[names[i]][field] = values.pack(of_parameter[field], field .. "/" .. names[i], mine, 3)
      end
    end
  end
  for g, group in ipairs(dict.param_groups) do
    local kept = {}
    for _, position in ipairs(group.params) do
      if not elsewhere[position] then kept[#kept + 1] = names[position] end
    end
    group.params = nil
    groups[g] = {options = values.pack(group, "param_groups", mine, 3), params = kept}
  end
  local by_place, all = stages.join(pipe, {groups = groups, state = own}, mine)
  table.move(all, 1, #all, #tensors + 1, tensors)
  local joined = {}
  for _, one in ipairs(by_place) do
    for name, of_parameter in pairs(one.state) do joined[name] = of_parameter end
  end
  return {name = dict.name, by = "name", param_groups = merged_groups(by_place), state = joined}
end

--- As plan_module of checkpoint.lua: checks the whole model's names, and reads this rank's tensors.
function stages.plan_model(pipe, value, names, key, reader, options)
  local model = pipe:_whole_model()
  local _, given = state.check_saved(model, value, options)
  local checked = type(reader) == "table"  -- of blocks (checkpoint_per_rank.lua)
  for name, target in pipe:_own_state() do
    if checked and given[name] ~= nil then reader:check(key, names[given[name]], target) end
  end
  return function()
    mh.no_grad(function()
      for name, target in pipe:_own_state() do
        if given[name] ~= nil then reader:read_alone(key, names[given[name]], target) end
      end
    end)
  end
end

return stages
