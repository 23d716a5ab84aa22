-- SPDX-License-Identifier: Apache-2.0
-- The policy "autodist" with pas_config.machine: candidates by the time of their steps on a machine.
--
-- The search is C++ (engine/forecast/search): lower bounds, then dry runs of the ranks that matter, then clocks, then
-- real steps of the best. It calls `build` below for each candidate: the module with zeros in the place of its
-- parameters and arguments, divided as it will be in the run (division.lua), and a step with AdamW. The module itself
-- is as before afterwards.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local at_end = require "moonhalo.internal.at_end"
local base = require "moonhalo.nn.module"
local candidates = require "moonhalo.policy.candidates"
local compute_config = require "moonhalo.policy.compute_config"
local division = require "moonhalo.policy.division"
local module_state = require "moonhalo.policy.module_state"
local plural = require "moonhalo.internal.plural"
local policies = require "moonhalo.policy.policies"
local recompute = require "moonhalo.policy.recompute"
local sample_arguments = require "moonhalo.internal.sample_arguments"
local steps = require "moonhalo.policy.steps"

local fail = mh.fail

local kWho = "parallelize: policy 'autodist'"
local kLimits = {"most_data", "most_rows", "most_columns", "most_tensor", "most_stages"}
local kSchedules = {"1f1b", "gpipe", "interleaved_1f1b"}
local kBackends = {"threads", "mpi", "tcp", "nccl", "staged"}

-- ---- Options --------------------------------------------------------------------------------------------------------

--- Numbers of micro-batches, as a list.
local function check_micro_batches(numbers)
  if type(numbers) ~= "table" or getmetatable(numbers) or #numbers == 0 then
    fail(("%s: micro_batches = %s, expected a list of numbers of micro-batches\n  fix   {1, 2, 4, 8}"):format(kWho,
      mh._describe(numbers)))
  end
  for _, number in ipairs(numbers) do
    if math.type(number) ~= "integer" or number < 1 then
      fail(("%s: micro_batches has %s, expected numbers of at least 1"):format(kWho, mh._describe(number)))
    end
  end
end

--- Micro-batches are samples of train_step, which modules have whose forward gives the loss.
local function check_micros(options, config)
  local micros, numbers = options.pipeline_nmicros, options.micro_batches
  if micros ~= nil and math.type(micros) ~= "integer" then
    fail(("%s: pipeline_nmicros = %s, expected a number of micro-batches"):format(kWho, mh._describe(micros)))
  end
  if numbers ~= nil then check_micro_batches(numbers) end
  if micros and numbers then
    fail(("%s: pipeline_nmicros and micro_batches both say how many micro-batches a step has\n" ..
      "  have  pipeline_nmicros = %d, of samples as large as the dummy; micro_batches = {%s}, parts of the dummy\n" ..
      "  fix   give one"):format(kWho, micros, table.concat(numbers, ", ")))
  end
  if options.pipeline_scheduler ~= nil then
    arguments.choice(kWho, "pipeline_scheduler", options.pipeline_scheduler, kSchedules)
  end
  for _, name in ipairs {"pipeline_scheduler", "most_stages"} do
    if options[name] ~= nil and micros == nil and numbers == nil then
      fail(("%s: %s with machine needs the number of micro-batches in a step\n  have  pas_config.%s = %s\n" ..
        "  fix   pipeline_nmicros = 4, each as large as the dummy, or micro_batches = {2, 4}, parts of it"):format(
        kWho, name, name, tostring(options[name])))
    end
  end
  for _, name in ipairs {"pipeline_nmicros", "micro_batches"} do
    if options[name] ~= nil and not config.use_end2end then
      local value = options[name]
      local text = type(value) == "table" and "{" .. table.concat(value, ", ") .. "}" or tostring(value)
      fail(("%s: %s with machine is for modules whose forward takes a sample and gives the loss\n" ..
        "  have  pas_config.%s = %s\n  fix   ComputeConfig{use_end2end = true}, or leave it out"):format(
        kWho, name, name, text))
    end
  end
end

local function check_options(options, config)
  if type(options.machine) ~= "string" then
    fail(("%s: machine = %s, expected a file of moonhalo calibrate, or a name as 'h100'"):format(kWho,
      mh._describe(options.machine)))
  end
  if options.recompute ~= nil then arguments.flag(kWho, "recompute", options.recompute) end
  if options.backend ~= nil then arguments.choice(kWho, "backend", options.backend, kBackends) end
  for _, name in ipairs {"measure", table.unpack(kLimits)} do
    local value, least = options[name], name == "measure" and 0 or 1
    if value ~= nil and (math.type(value) ~= "integer" or value < least) then
      fail(("%s: %s = %s, expected an integer of at least %d"):format(kWho, name, mh._describe(value), least))
    end
  end
  check_micros(options, config)
end

--- Says why a module has no part that can be computed again, with the remedy.
local function why_no_parts(module)
  if not module:has("stages") then
    return "modules of single layers", "make its blocks modules with layers of their own, or give it stages()"
  end
  local named = {}
  for _, one in module:named_modules() do named[one] = true end
  for i, stage in ipairs(module:stages()) do
    if not named[stage] then
      return ("stages() makes a new module for stage %d in each call, which has no name"):format(i - 1),
        "make stages in init, self.first = nn.Sequential(...), and return them: {self.first, ...}"
    end
  end
  return "stages() gives single layers", "make stages of several layers"
end

--- The parts of the module that may compute their inside again; none where that is not asked for.
local function parts_of(module, options)
  if options.recompute == false then return {} end
  local parts = recompute.parts(module)
  if options.recompute and #parts == 0 then
    fail(("%s: recompute = true, and %s has no part that can be computed again\n  have  %s\n  fix   %s"):format(kWho,
      module:class_name(), why_no_parts(module)))
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

--- Checks that micro-batches can be equal parts of the dummy.
local function check_rows(values, numbers)
  arguments.map_tensors(values, function(x)
    if x.ndim == 0 or sample_arguments.is_constant(x) then return x end
    for _, number in ipairs(numbers) do
      if x.shape[1] % number ~= 0 then
        fail(("%s: micro_batches: %s of the dummy %s not %d equal parts\n" ..
          "  have  a tensor of {%s}, micro_batches = {%s}\n" ..
          "  fix   numbers that divide the rows, or mh.constant(t) for a tensor that all samples share"):format(
          kWho, plural(x.shape[1], "row"), x.shape[1] == 1 and "is" or "are", number, table.concat(x.shape, ", "),
          table.concat(numbers, ", ")))
      end
    end
    return x
  end)
end

--- The most stages that a pipeline may have: each has parameters, which the optimizer of its ranks needs. 1 without a
--- number of micro-batches, and for modules that cannot be a pipeline, unless most_stages asks for it.
local function most_stages(module, graph, config)
  local options, trained = config.pas_config, 0
  if not options.pipeline_nmicros and not options.micro_batches then return 1 end
  for _, elements in ipairs(graph.stage_elements or {}) do trained = trained + (elements > 0 and 1 or 0) end
  local allowed = math.min(policies.most_stages(graph, config), options.most_stages or math.huge, math.max(1, trained))
  if allowed > 1 and options.most_stages then policies.check_pipeline(module, graph.names) end
  return policies.can_be_pipeline(module, graph.names) and allowed or 1
end

local function space_of(module, values, graph, config, parts)
  local options, ranks = config.pas_config, config.plan_ngpus
  local data, rows, columns = largest_sizes(values, graph)
  local cuts = policies.has_tensor_cuts(graph)
  local zero_over_units = config.use_zero and config.units > 1
  if options.micro_batches then check_rows(values, options.micro_batches) end
  return {
    ranks = ranks, most_data = options.most_data or data, most_rows = options.most_rows or rows,
    most_columns = options.most_columns or columns, most_tensor = options.most_tensor or cuts and ranks or 1,
    most_stages = most_stages(module, graph, config), recompute = #parts > 0,
    samples = options.micro_batches and data or nil,
    micro_batches = options.micro_batches or {options.pipeline_nmicros or 1},
    -- With use_zero the run stores parameters over the units, or over the data ranks of its only unit (division.lua).
    units_store = zero_over_units, may_store = not zero_over_units, may_copy = zero_over_units or not config.use_zero,
  }
end

--- The placements of a division of C++. `parts`: what one that recomputes computes again. `searches_micro_batches`: the
--- number of micro-batches belongs to the plan.
local function candidate_of(given, graph, parts, searches_micro_batches)
  local candidate = {
    sizes = {pp = given.stages, dp = given.data, domain = given.rows, columns = given.columns, tp = given.tensor},
    stored = given.stored, recompute = given.recompute, micro_batches = given.micro_batches,
  }
  candidate.placed = candidates.placed_for(candidate.sizes, candidate.stored, graph)
  candidate.placed.recompute = candidate.recompute and parts or nil
  candidate.placed.micro_batches = searches_micro_batches and candidate.micro_batches or nil
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

--- Arguments of forward as a sample of train_step.
local function sample_of(args, names)
  if #names == 1 then return args[1] end
  local sample = {}
  for i, name in ipairs(names) do sample[name] = args[i] end
  return sample
end

--- The configuration for the ranks of a candidate: the world may be that of its whole model on one rank.
local function config_on(candidate, config)
  local fields = compute_config.fields(config)
  fields.plan_ngpus, fields.runtime_ngpus = 1, mh.world_size()
  for _, size in ipairs(candidate.placed.mesh[1]) do fields.plan_ngpus = fields.plan_ngpus * size end
  return mh.ComputeConfig(fields)
end

--- The step of a candidate, carried out as it will be in the run, and the parameters that it trains. `run`: {module,
--- values, names, config, per_byte}.
local function build(candidate, run)
  local module, original, config = run.module, module_state.take(run.module), config_on(candidate, run.config)
  local divided, optimizer, trained, batches
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
    division.apply(module, candidate.placed, config, run.names, false, run.per_byte)
    trained, batches = trained_of(module), {}
    optimizer = mh.optim.AdamW(module:parameters(), {lr = 1e-3})
    local parallel = module.parallel
    local where = {module = module, mesh = parallel.pipeline and parallel.pipeline.mesh or parallel.mesh,
                   inputs = candidate.placed.inputs}
    local values = run.values
    if config.pas_config.micro_batches then
      values = sample_arguments.split_samples(values, candidate.micro_batches)[1]
    end
    for micro = 1, candidate.micro_batches do
      batches[micro] = steps.place(candidates.zero_batch(values, where.mesh), where)
    end
  end)
  return function()
    within(function()
      local joined = candidates.join_blocks(batches)
      if config.use_end2end then
        local samples = {}
        for micro, args in ipairs(joined) do samples[micro] = sample_of(args, run.names) end
        module:train_step(samples)
      else
        optimizer:zero_grad()
        candidates.find_gradients(module, joined, run.values.n)
      end
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
  local run = {module = module, values = values, names = graph.names, config = config, per_byte = per_byte}
  local searched = options.micro_batches ~= nil
  local json, text = mh._search_divisions(space, function(given)
    return build(candidate_of(given, graph, parts, searched), run)
  end)
  local list = {}
  for i, one in ipairs(mh.json.decode(json).divisions) do
    local candidate = candidate_of(one, graph, parts, searched)
    candidate.seconds, candidate.measured = one.step > 0 and one.step or nil, one.measured
    candidate.bound, candidate.memory, candidate.bytes, candidate.why = one.bound, one.memory, one.sent, one.why
    candidate.fits = not one.fate:find("too large", 1, true)
    list[i] = candidate
  end
  return list[1].placed, setmetatable({candidates = list, text = text, json = json}, report_meta)
end

return timed_search
