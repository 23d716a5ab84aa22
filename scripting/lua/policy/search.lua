-- SPDX-License-Identifier: Apache-2.0
-- The policy "autodist": tries every way to share out the ranks of a unit, and takes the cheapest.
--
-- A candidate is a mesh of data, domain and tensor ranks, with parameters copied or kept in blocks over the data
-- ranks. It is carried out once on the ranks of the run, forward, backward and the sums of gradients, with zeros in
-- the place of parameters and arguments; what every rank sent and multiplied is counted, not timed. In a run with
-- `--backend fake --ranks 64` the others are simulated, and rank 0's numbers count. A pipeline is not carried out:
-- its numbers are those of the ranks beside it, with the share of the largest stage, the wait of its schedule and
-- what goes from stage to stage.

local mh = require "moonhalo"
local candidates = require "moonhalo.policy.candidates"
local compute_config = require "moonhalo.policy.compute_config"
local plural = require "moonhalo.internal.plural"
local policies = require "moonhalo.policy.policies"
local policy_graph = require "moonhalo.policy.graph"
local steps = require "moonhalo.policy.steps"
local timed_search = require "moonhalo.policy.timed_search"

local fail = mh.fail
local search = {}

local kOptions = {"macs_per_byte", "memory_limit", "pipeline_nmicros", "pipeline_scheduler"}
-- With a machine, times count (timed_search.lua).
local kTimedOptions = {"backend", "machine", "macs_per_byte", "measure", "memory_limit", "micro_batches",
                       "most_columns", "most_data", "most_rows", "most_stages", "most_tensor", "pipeline_nmicros",
                       "pipeline_scheduler", "recompute"}
search.options = kTimedOptions
local kHeaderBytes = 1024  -- before what goes from stage to stage (engine/pipeline/tensor_link.cpp)

-- ---- Candidates -----------------------------------------------------------------------------------------------------

--- `stages`: the most that a pipeline may have.
local function candidates_of(graph, ranks, stages)
  local field, cuts, list = candidates.has_field(graph), policies.has_tensor_cuts(graph), {}
  for pp = 1, math.min(ranks, stages) do
    for dp = ranks // pp, 1, -1 do
      for domain = ranks // (pp * dp), 1, -1 do
        local tp = ranks // (pp * dp * domain)
        if pp * dp * domain * tp == ranks and (domain == 1 or field) and (tp == 1 or cuts) then
          local sizes = {pp = pp, dp = dp, domain = domain, tp = tp}
          list[#list + 1] = {sizes = sizes, stored = false, placed = candidates.placed_for(sizes, false, graph)}
          if dp > 1 and pp == 1 then
            list[#list + 1] = {sizes = sizes, stored = true, placed = candidates.placed_for(sizes, true, graph)}
          end
        end
      end
    end
  end
  return list
end

-- ---- Counting -------------------------------------------------------------------------------------------------------

local function bytes_of(shape, dtype)
  local bytes = tonumber(dtype:match("(%d+)$") or 8) // 8
  for _, size in ipairs(shape) do bytes = bytes * size end
  return bytes
end

--- The bytes that all operators of the forward give, once each.
local function activation_bytes(graph)
  local seen, bytes = {}, 0
  for _, node in ipairs(graph.nodes) do
    for _, output in ipairs(node.outputs) do
      if not seen[output.value] then bytes = bytes + bytes_of(output.shape, output.dtype) end
      seen[output.value] = true
    end
  end
  return bytes
end

--- One step of this rank: {bytes sent, messages, multiplications, bytes of parameters, gradients and states of AdamW}.
local function step_of(module, values, where)
  local held = 0
  for _, parameter in ipairs(module:parameters()) do
    if parameter.requires_grad then held = held + 4 * bytes_of(parameter:to_local().shape, parameter.dtype) end
  end
  local args = steps.place(candidates.zero_batch(values, where.mesh), where)
  local before = mh.comm_stats()
  local macs = mh._call_graph.macs(function() candidates.find_gradients(module, {args}, values.n) end)
  local after = mh.comm_stats()
  return {after.bytes - before.bytes, after.messages - before.messages, macs, held}
end

--- The largest of every number over the ranks, so that all decide in the same way; of this rank where there is no
--- other.
local function largest(numbers, mesh)
  if mh.backend() == "fake" then return numbers end
  local placements = {}
  for i = 1, mesh.ndim do placements[i] = mh.Shard(0) end
  local all = mh.from_local(mh.tensor(numbers, {dtype = "float64"}):reshape{1, #numbers}, mesh, placements)
  return all:full_tensor():amax{dim = {0}}:tolist()
end

--- The sum of every run of `numbers`, and of all.
local function sums_of(numbers, runs)
  local sums, total, at = {}, 0, 0
  for i, length in ipairs(runs) do
    sums[i] = 0
    for k = at + 1, at + length do sums[i] = sums[i] + numbers[k] end
    at, total = at + length, total + sums[i]
  end
  return sums, total
end

--- Bytes of what every stage of `runs` hands on, values of earlier ones included.
local function crossing_bytes(graph, runs)
  local stage_of, number = {}, 0
  for stage, length in ipairs(runs) do
    for _ = 1, length do number = number + 1; stage_of[number] = stage end
  end
  local made, last, size = {}, {}, {}
  for _, node in ipairs(graph.nodes) do
    local stage = stage_of[node.stage] or #runs  -- the loss
    for _, input in ipairs(node.inputs) do
      if made[input.value] then last[input.value] = math.max(last[input.value], stage) end
    end
    for _, output in ipairs(node.outputs) do
      if not made[output.value] then
        made[output.value], last[output.value], size[output.value] = stage, stage, bytes_of(output.shape, output.dtype)
      end
    end
  end
  local crossing = {}
  for stage = 1, #runs do crossing[stage] = 0 end
  for value, stage in pairs(made) do
    for between = stage, last[value] - 1 do crossing[between] = crossing[between] + size[value] end
  end
  return crossing
end

--- Makes of the numbers of ranks that have all layers those of a pipeline's largest stage, for one of `micros`
--- micro-batches. 1f1b keeps the activations of as many micro-batches as there are stages.
local function as_pipeline(candidate, graph, micros, held, activations)
  local runs, sizes, largest_share = candidate.placed.stages, candidate.sizes, 0
  local macs, all_macs = sums_of(graph.stage_macs, runs)
  local elements, all_elements = sums_of(graph.stage_elements, runs)
  local crossing, most = crossing_bytes(graph, runs), 0
  local work, kept, sends = 0, 0, math.min(#runs - 1, 2)  -- forward, and the gradient back
  for stage = 1, #runs do
    work = math.max(work, all_macs > 0 and macs[stage] / all_macs or 1 / #runs)
    kept = math.max(kept, all_elements > 0 and elements[stage] / all_elements or 1 / #runs)
    most = math.max(most, crossing[stage] + (crossing[stage - 1] or 0))
  end
  largest_share = math.max(work, kept)
  candidate.macs = candidate.macs * work * (micros + #runs - 1) / micros
  candidate.bytes = candidate.bytes * largest_share + most / (sizes.dp * sizes.domain) + sends * kHeaderBytes
  candidate.messages = candidate.messages * largest_share + sends
  candidate.memory = held * kept + activations * work * math.min(micros, #runs)
end

--- `run`: {units, micros, per_byte}.
local function count(candidate, module, values, graph, run)
  local mesh = candidates.mesh_of(candidate, run.units, run.per_byte)
  local zeros = candidates.zeros_on(mesh, candidate, candidates.names_of(module))
  local numbers = policy_graph.with_tensors(module, zeros, function()
    return step_of(module, values, {module = module, mesh = mesh, inputs = candidate.placed.inputs})
  end)
  local found = largest(numbers, mesh)
  candidate.bytes, candidate.messages, candidate.macs = found[1], found[2], found[3]
  local activations = activation_bytes(graph) / (candidate.sizes.dp * candidate.sizes.domain)
  candidate.memory = found[4] + activations
  if candidate.placed.stages then as_pipeline(candidate, graph, run.micros, found[4], activations) end
end

-- ---- The report -----------------------------------------------------------------------------------------------------

local report_meta = {__name = "PlanReport"}

function report_meta:__tostring()
  local cost = self.macs_per_byte < math.huge and ("multiplications + %g x bytes sent"):format(self.macs_per_byte)
      or "bytes sent"
  local lines = {("autodist: %s; cost = %s, of the rank that has most"):format(
    plural(#self.candidates, "candidate"), cost)}
  lines[2] = ("  %-28s %12s %9s %12s %12s %12s"):format("ranks", "bytes sent", "messages", "macs", "memory", "cost")
  for _, one in ipairs(self.candidates) do
    local what = ("%sdp %d, domain %d, tp %d%s"):format(one.sizes.pp > 1 and "pp " .. one.sizes.pp .. ", " or "",
      one.sizes.dp, one.sizes.domain, one.sizes.tp, one.stored and ", stored" or "")
    lines[#lines + 1] = ("  %-28s %12d %9d %12d %12d %12.0f%s"):format(what, one.bytes // 1, one.messages // 1,
      one.macs // 1, one.memory // 1, one.cost, one.fits and "" or "  too large")
  end
  return table.concat(lines, "\n")
end

local function check_options(options)
  local timed = options.machine ~= nil
  policies.check_options("autodist", options, timed and kTimedOptions or kOptions, not timed and kTimedOptions or nil)
  for _, name in ipairs {"macs_per_byte", "memory_limit", "pipeline_nmicros"} do
    if options[name] ~= nil and (type(options[name]) ~= "number" or not (options[name] > 0)) then
      fail(("parallelize: policy 'autodist': %s = %s, expected a number above 0"):format(name, tostring(options[name])))
    end
  end
end

--- The cheapest placements for the ranks of a unit whose memory is within pas_config.memory_limit (bytes a rank:
--- parameters, gradients, two states, and an estimate of activations), and a report: {candidates = list, cheapest
--- first, of {sizes, stored, placed, bytes, messages, macs, memory, cost, fits}}, which prints as a table.
--- pas_config.macs_per_byte: how many multiplications take as long as sending a byte. Where forward gives the loss of a
--- module with stages(), pipelines are tried, too, of pas_config.pipeline_nmicros micro-batches (as many as stages).
--- Collective over all ranks, which must be whole units.
function search.autodist(module, dummy, graph, config)
  local options = config.pas_config
  check_options(options)
  local ranks, world, timed = config.plan_ngpus, mh.world_size(), options.machine ~= nil
  if world % ranks ~= 0 and not timed then
    fail(("parallelize: policy 'autodist' tries plans of %s out, the run has %d\n" ..
      "  fix   run with --ranks %d"):format(plural(ranks, "rank"), world, ranks))
  end
  local values, generator = policy_graph.arguments(module, dummy), mh.default_generator()
  local drawn, per_byte = generator:state_dict(), compute_config.macs_per_byte(config, "autodist")
  if timed then
    local placed, report = timed_search(module, values, graph, config, per_byte)
    generator:load_state_dict(drawn)
    module:zero_grad()
    return placed, report
  end
  local list = candidates_of(graph, ranks, policies.most_stages(graph, config))
  for i, one in ipairs(list) do
    count(one, module, values, graph, {units = world // ranks, micros = options.pipeline_nmicros or one.sizes.pp,
        per_byte = per_byte})
    one.cost = per_byte < math.huge and one.macs + per_byte * one.bytes or one.bytes
    one.fits, one.number = one.memory <= (options.memory_limit or math.huge), i
  end
  generator:load_state_dict(drawn)
  module:zero_grad()
  table.sort(list, function(a, b)
    if a.fits ~= b.fits then return a.fits end
    if a.cost ~= b.cost then return a.cost < b.cost end
    return a.number < b.number
  end)
  local report = setmetatable({candidates = list, macs_per_byte = per_byte}, report_meta)
  if not list[1].fits then
    fail(("parallelize: policy 'autodist': no plan fits into %s bytes a rank\n  have  %s"):format(
      tostring(options.memory_limit), tostring(report)))
  end
  return list[1].placed, report
end

return search
