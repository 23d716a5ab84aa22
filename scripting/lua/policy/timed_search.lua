-- SPDX-License-Identifier: Apache-2.0
-- The policy "autodist" with pas_config.machine: candidates by the time of their steps on a machine.
--
-- The search is C++ (engine/forecast/search): lower bounds, then dry runs of the ranks that matter, then clocks, then
-- real steps if `measure` asks for them. Here is what it calls for each candidate: the module with zeros in the place
-- of its parameters and arguments, and a step with AdamW. A pipeline is carried out as it will be in the run
-- (division.lua). The module itself is as before afterwards.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local at_end = require "moonhalo.internal.at_end"
local base = require "moonhalo.nn.module"
local candidates = require "moonhalo.policy.candidates"
local division = require "moonhalo.policy.division"
local module_state = require "moonhalo.policy.module_state"
local policies = require "moonhalo.policy.policies"
local policy_graph = require "moonhalo.policy.graph"
local recompute = require "moonhalo.policy.recompute"
local sample_arguments = require "moonhalo.internal.sample_arguments"
local steps = require "moonhalo.policy.steps"

local fail = mh.fail

local kWho = "parallelize: policy 'autodist'"
local kLimits = {"most_data", "most_rows", "most_columns", "most_tensor", "most_stages"}
local kSchedules = {"1f1b", "gpipe", "interleaved_1f1b"}

-- ---- Options --------------------------------------------------------------------------------------------------------

--- Micro-batches are samples of train_step, which modules have whose forward gives the loss.
local function check_micros(options, config)
  local micros = options.pipeline_nmicros
  if micros ~= nil and math.type(micros) ~= "integer" then
    fail(("%s: pipeline_nmicros = %s, expected a number of micro-batches"):format(kWho, mh._describe(micros)))
  end
  if options.pipeline_scheduler ~= nil then
    arguments.choice(kWho, "pipeline_scheduler", options.pipeline_scheduler, kSchedules)
  end
  for _, name in ipairs {"pipeline_scheduler", "most_stages"} do
    if options[name] ~= nil and micros == nil then
      fail(("%s: %s with machine needs the number of micro-batches in a step\n  have  pas_config.%s = %s\n" ..
        "  fix   pipeline_nmicros = 4, each as large as the dummy"):format(kWho, name, name,
          tostring(options[name])))
    end
  end
  if micros ~= nil and not config.use_end2end then
    fail(("%s: pipeline_nmicros with machine is for modules whose forward takes a sample and gives the loss\n" ..
      "  have  pas_config.pipeline_nmicros = %d\n  fix   ComputeConfig{use_end2end = true}, or leave it out"):format(
      kWho, micros))
  end
end

local function check_options(options, config)
  if type(options.machine) ~= "string" then
    fail(("%s: machine = %s, expected a file of moonhalo calibrate, or a name as 'h100'"):format(kWho,
      mh._describe(options.machine)))
  end
  if options.recompute ~= nil then arguments.flag(kWho, "recompute", options.recompute) end
  for _, name in ipairs {"measure", table.unpack(kLimits)} do
    local value, least = options[name], name == "measure" and 0 or 1
    if value ~= nil and (math.type(value) ~= "integer" or value < least) then
      fail(("%s: %s = %s, expected an integer of at least %d"):format(kWho, name, mh._describe(value), least))
    end
  end
  check_micros(options, config)
end

--- The parts of the module that may compute their inside again; none where that is not asked for.
local function parts_of(module, options)
  if options.recompute == false then return {} end
  local parts = recompute.parts(module)
  if options.recompute and #parts == 0 then
    fail(("%s: recompute = true, and %s has no part that can be computed again\n" ..
        "  fix   make its blocks modules with layers of their own, or give it stages()"):format(kWho,
      module:class_name()))
  end
  return parts
end

-- ---- The space ------------------------------------------------------------------------------------------------------

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

--- The most stages that a pipeline may have: each has parameters, which the optimizer of its ranks needs. 1 without a
--- number of micro-batches, and for modules that cannot be a pipeline, unless most_stages asks for it.
local function most_stages(module, graph, config)
  local options, trained = config.pas_config, 0
  if not options.pipeline_nmicros then return 1 end
  for _, elements in ipairs(graph.stage_elements or {}) do trained = trained + (elements > 0 and 1 or 0) end
  local allowed = math.min(policies.most_stages(graph, config), options.most_stages or math.huge, math.max(1, trained))
  if allowed > 1 and options.most_stages then policies.check_pipeline(module, graph.names) end
  return policies.can_be_pipeline(module, graph.names) and allowed or 1
end

local function space_of(module, values, graph, config, parts)
  local options, ranks = config.pas_config, config.plan_ngpus
  local data, rows, columns = largest_sizes(values, graph)
  local cuts = policies.has_tensor_cuts(graph)
  return {
    ranks = ranks, most_data = options.most_data or data, most_rows = options.most_rows or rows,
    most_columns = options.most_columns or columns, most_tensor = options.most_tensor or cuts and ranks or 1,
    most_stages = most_stages(module, graph, config), recompute = #parts > 0,
  }
end

--- The placements of a division of C++. `parts`: what one that recomputes computes again.
local function candidate_of(given, graph, parts)
  local candidate = {
    sizes = {pp = given.stages, dp = given.data, domain = given.rows, columns = given.columns, tp = given.tensor},
    stored = given.stored, recompute = given.recompute,
  }
  candidate.placed = candidates.placed_for(candidate.sizes, candidate.stored, graph)
  candidate.placed.recompute = candidate.recompute and parts or nil
  return candidate
end

-- ---- Steps ----------------------------------------------------------------------------------------------------------

--- Tensors of dry runs are those of the CPU.
local function device_of_run() return mh.backend() == "fake" and "cpu" or mh.device() end

local function trained_of(module)
  local trained = {}
  for _, parameter in ipairs(module:parameters()) do
    if parameter.requires_grad then trained[#trained + 1] = parameter end
  end
  return trained
end

--- The steps of a candidate without stages, and the parameters that it trains. `run`: {module, values, per_byte,
--- micros}, of which each micro-batch has the values.
local function build_whole(candidate, run)
  local module, sizes = run.module, candidate.sizes
  local units = mh.world_size() // (sizes.dp * sizes.domain * sizes.columns * sizes.tp)
  local mesh = candidates.mesh_of(candidate, units, run.per_byte, device_of_run())
  local zeros, made = candidates.zeros_on(mesh, candidate, candidates.names_of(module)), {}
  local function with_zeros(fn)
    return policy_graph.with_tensors(module, function(tensor)
      made[tensor] = made[tensor] or zeros(tensor)
      return made[tensor]
    end, fn)
  end
  local parameters, batches = nil, {}
  with_zeros(function()
    parameters = trained_of(module)
    for micro = 1, run.micros do
      batches[micro] = steps.place(candidates.zero_batch(run.values, mesh),
        {module = module, mesh = mesh, inputs = candidate.placed.inputs})
    end
  end)
  local optimizer = mh.optim.AdamW(parameters, {lr = 1e-3})
  return function()
    with_zeros(function()
      optimizer:zero_grad()
      do
        local _ <close> = at_end(recompute.apply(module, candidate.placed.recompute))
        candidates.find_gradients(module, candidates.join_blocks(batches), run.values.n, run.config.use_end2end)
      end
      optimizer:step()
    end)
  end, parameters
end

--- Zeros in the place of the module's tensors. Those that are deferred have memory for their blocks alone.
local function zero_tensors(module)
  local made, device = {}, device_of_run()
  for _, one in module:named_modules() do
    for _, registry in ipairs {"_parameters", "_buffers"} do
      local tensors = rawget(one, registry)
      for name, tensor in tensors do
        local options = {dtype = tensor.dtype, device = device}
        local function zeros()
          if tensor:is_deferred() then return mh.zeros({}, options):expand(tensor.shape) end
          return mh.zeros(tensor.shape, options)
        end
        made[tensor] = made[tensor]
            or (registry == "_parameters" and base.Parameter(zeros(), tensor.requires_grad) or zeros())
        tensors[name] = made[tensor]
      end
    end
  end
end

--- The same of a candidate with stages.
local function build_stages(candidate, run)
  local module, original = run.module, module_state.take(run.module)
  local divided, optimizer, trained, samples
  local function within(fn)
    if divided then module_state.put(divided) end
    local _ <close> = at_end(function()
      divided = module_state.take(module)
      module_state.put(original)
    end)
    fn()
  end
  within(function()
    zero_tensors(module)
    division.apply(module, candidate.placed, run.config, run.names, false, run.per_byte)
    trained = trained_of(module)
    optimizer, samples = mh.optim.AdamW(module:parameters(), {lr = 1e-3}), {}
    local where = {module = module, mesh = module.parallel.pipeline.mesh, inputs = candidate.placed.inputs}
    for micro = 1, run.micros do
      samples[micro] = steps.place({candidates.zero_batch(run.values, where.mesh)[1]}, where)[1]
    end
  end)
  return function()
    within(function()
      module:train_step(candidates.join_blocks(samples))
      optimizer:step()
    end)
  end, trained
end

-- ---- The search -----------------------------------------------------------------------------------------------------

local report_meta = {__name = "PlanReport"}
function report_meta:__tostring() return self.text end

--- The fastest placements for the ranks of a unit, and a report: {candidates = list, fastest first, of {sizes, stored,
--- recompute, placed, seconds, bound, measured, memory, bytes, fits, why}, text, json}, which prints as a table.
--- Collective.
local function timed_search(module, values, graph, config, per_byte)
  local options = config.pas_config
  check_options(options, config)
  local parts = parts_of(module, options)
  local space = space_of(module, values, graph, config, parts)
  space.machine, space.backend, space.units = options.machine, options.backend, config.units
  space.measure = options.measure
  local limit = options.memory_limit
  space.memory_limit = limit and math.max(1, math.min(2.0 ^ 62, limit) // 1 | 0)
  local run = {module = module, values = values, names = graph.names, config = config, per_byte = per_byte,
               micros = options.pipeline_nmicros or 1}
  local json, text = mh._search_divisions(space, function(given)
    return (given.stages > 1 and build_stages or build_whole)(candidate_of(given, graph, parts), run)
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
