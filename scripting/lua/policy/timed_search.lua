-- SPDX-License-Identifier: Apache-2.0
-- The policy "autodist" with pas_config.machine: candidates by the time of their steps on a machine.
--
-- The search is C++ (engine/forecast/search): lower bounds, then dry runs of the ranks that matter, then clocks, then
-- real steps if `measure` asks for them. Here is what it calls for each candidate: the module with zeros in the place
-- of its parameters and arguments, and a step with AdamW. The module itself is as before afterwards.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local candidates = require "moonhalo.policy.candidates"
local policies = require "moonhalo.policy.policies"
local policy_graph = require "moonhalo.policy.graph"
local recompute = require "moonhalo.policy.recompute"
local sample_arguments = require "moonhalo.internal.sample_arguments"
local steps = require "moonhalo.policy.steps"

local fail = mh.fail

-- Options of the counting search, with the reason why they are none here.
local kNotSearched = {
  pipeline_nmicros = "pipelines and micro-batches are not searched", pipeline_scheduler = "pipelines are not searched",
}
local kLimits = {"most_data", "most_rows", "most_columns", "most_tensor"}

local function check_options(options)
  for name, why in pairs(kNotSearched) do
    if options[name] ~= nil then
      fail(("parallelize: policy 'autodist': %s with machine: %s\n  have  pas_config.%s = %s\n" ..
        "  fix   leave it out, or leave machine out where it is counted"):format(name, why, name,
          tostring(options[name])))
    end
  end
  if type(options.machine) ~= "string" then
    fail(("parallelize: policy 'autodist': machine = %s, expected a file of moonhalo calibrate, or a name as 'h100'")
      :format(mh._describe(options.machine)))
  end
  if options.recompute ~= nil then
    arguments.flag("parallelize: policy 'autodist'", "recompute", options.recompute)
  end
  for _, name in ipairs {"measure", table.unpack(kLimits)} do
    local value, least = options[name], name == "measure" and 0 or 1
    if value ~= nil and (math.type(value) ~= "integer" or value < least) then
      fail(("parallelize: policy 'autodist': %s = %s, expected an integer of at least %d"):format(name,
        mh._describe(value), least))
    end
  end
end

--- The largest sizes that the arguments of forward have: rows of a batch, and the first two spatial dims of fields.
local function largest_sizes(values, graph)
  local data, rows, columns = 1, 1, 1
  arguments.map_tensors(values, function(x)
    if x.ndim > 0 and not sample_arguments.is_constant(x) then data = math.max(data, x.shape[1]) end
    if x.ndim >= 4 then rows, columns = math.max(rows, x.shape[3]), math.max(columns, x.shape[4]) end
    return x
  end)
  if not candidates.has_field(graph) then rows, columns = 1, 1 end
  return data, rows, columns
end

--- The parts of the module that may compute their inside again; none where that is not asked for.
local function parts_of(module, options)
  if options.recompute == false then return {} end
  local parts = recompute.parts(module)
  if options.recompute and #parts == 0 then
    fail(("parallelize: policy 'autodist': recompute = true, and %s has no part that can be computed again\n" ..
        "  fix   make its blocks modules with layers of their own, or give it stages()"):format(module:class_name()))
  end
  return parts
end

local function space_of(values, graph, config, parts)
  local options, ranks = config.pas_config, config.plan_ngpus
  local data, rows, columns = largest_sizes(values, graph)
  local cuts = policies.has_tensor_cuts(graph)
  return {
    ranks = ranks, most_data = options.most_data or data, most_rows = options.most_rows or rows,
    most_columns = options.most_columns or columns, most_tensor = options.most_tensor or cuts and ranks or 1,
    recompute = #parts > 0,
  }
end

--- The placements of a division of C++. `parts`: what one that recomputes computes again.
local function candidate_of(division, graph, parts)
  local candidate = {
    sizes = {pp = 1, dp = division.data, domain = division.rows, columns = division.columns, tp = division.tensor},
    stored = division.stored, recompute = division.recompute,
  }
  candidate.placed = candidates.placed_for(candidate.sizes, candidate.stored, graph)
  candidate.placed.recompute = candidate.recompute and parts or nil
  return candidate
end

--- The step of a candidate, and the parameters that it trains.
local function build(candidate, module, values, per_byte)
  local sizes = candidate.sizes
  local units = mh.world_size() // (sizes.dp * sizes.domain * sizes.columns * sizes.tp)
  local device = mh.backend() == "fake" and "cpu" or mh.device()  -- tensors of dry runs are those of the CPU
  local mesh = candidates.mesh_of(candidate, units, per_byte, device)
  local zeros, made = candidates.zeros_on(mesh, candidate, candidates.names_of(module)), {}
  local function with_zeros(fn)
    return policy_graph.with_tensors(module, function(tensor)
      made[tensor] = made[tensor] or zeros(tensor)
      return made[tensor]
    end, fn)
  end
  local parameters, args = {}, nil
  with_zeros(function()
    for _, parameter in ipairs(module:parameters()) do
      if parameter.requires_grad then parameters[#parameters + 1] = parameter end
    end
    args = steps.place(candidates.zero_batch(values, mesh),
      {module = module, mesh = mesh, inputs = candidate.placed.inputs})
  end)
  local optimizer = mh.optim.AdamW(parameters, {lr = 1e-3})
  return function()
    with_zeros(function()
      optimizer:zero_grad()
      do
        local _ <close> = setmetatable({}, {__close = recompute.apply(module, candidate.placed.recompute)})
        candidates.find_gradients(module, args, values.n)
      end
      optimizer:step()
    end)
  end, parameters
end

local report_meta = {__name = "PlanReport"}
function report_meta:__tostring() return self.text end

--- The fastest placements for the ranks of a unit, and a report: {candidates = list, fastest first, of {sizes, stored,
--- recompute, placed, seconds, bound, measured, memory, bytes, fits, why}, text, json}, which prints as a table.
--- Collective.
local function timed_search(module, values, graph, config, per_byte)
  local options = config.pas_config
  check_options(options)
  local parts = parts_of(module, options)
  local wanted = space_of(values, graph, config, parts)
  wanted.machine, wanted.backend, wanted.units = options.machine, options.backend, config.units
  wanted.measure = options.measure
  local limit = options.memory_limit
  wanted.memory_limit = limit and math.max(1, math.min(2.0 ^ 62, limit) // 1 | 0)
  local json, text = mh._search_divisions(wanted, function(division)
    return build(candidate_of(division, graph, parts), module, values, per_byte)
  end)
  local list = {}
  for i, one in ipairs(mh.json.decode(json).divisions) do
    local candidate = candidate_of(one, graph, parts)
    candidate.seconds, candidate.measured = one.step > 0 and one.step or nil, one.measured
    candidate.bound, candidate.memory, candidate.bytes, candidate.why = one.bound, one.memory, one.sent, one.why
    candidate.fits = not one.fate:find("too large", 1, true)
    list[i] = candidate
  end
  return list[1].placed, setmetatable({candidates = list, text = text, json = json}, report_meta)
end

return timed_search
