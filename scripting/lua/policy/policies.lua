-- SPDX-License-Identifier: Apache-2.0
-- Policies: functions from a graph and a configuration to placements, which are plain data:
--   mesh       {{2, 2}, {"dp", "tp"}}: the ranks of a unit; the mesh dim "pp" holds the stages of a pipeline
--   parameter  {["fc1.weight"] = {mh.Replicate(), mh.Shard(0)}}: one placement for each mesh dim but "pp"; others
--   Replicate
--   inputs     {dp = 0}: mesh dims, and the dim of forward's tensors that each cuts (those of fewer dims, and
--   constants, stay whole)
--   stored     "dp": the mesh dim over which parameters are kept in blocks besides
--   forward    as of parallelize_module, for the mesh of a unit; not with stages
--   stages     {2, 1}: how many of module:stages() make a stage of the pipeline
--   recompute  {{"blocks.0"}, {"head.0", "head.1"}}: parts whose inside is computed again in backward; several names
--   are neighbours in a Sequential

local mh = require "moonhalo"
local plural = require "moonhalo.internal.plural"

local fail = mh.fail
local policies = {}

-- ---- What the graph says --------------------------------------------------------------------------------------------

local function set_of(words)
  local set = {}
  for word in words:gmatch("%S+") do set[word] = true end
  return set
end

-- A cut of features or channels goes through these.
local kPassing = set_of [[relu relu_ gelu silu tanh sigmoid elu leaky_relu softplus mish hardswish dropout
  mul add div neg square sqrt exp view reshape permute transpose unflatten flatten contiguous clone
  scaled_dot_product_attention]]
local kWeighted = set_of "linear conv1d conv2d conv3d"

--- Nodes with a weight that no other node has, whose channels are not in groups.
local function weighted_nodes(graph)
  local found, uses = {}, {}
  for _, node in ipairs(graph.nodes) do
    for _, input in ipairs(node.inputs) do
      if input.parameter then uses[input.parameter] = (uses[input.parameter] or 0) + 1 end
    end
  end
  for i, node in ipairs(graph.nodes) do
    local input, weight = node.inputs[1], node.inputs[2]
    if kWeighted[node.op] and weight.parameter and uses[weight.parameter] == 1 then
      local channels = node.op == "linear" and input.shape[#input.shape] or input.shape[2]
      if weight.shape[2] == channels then found[i] = node end
    end
  end
  return found
end

local function consumers_of(graph)
  local consumers = {}
  for i, node in ipairs(graph.nodes) do
    for _, input in ipairs(node.inputs) do
      consumers[input.value] = consumers[input.value] or {}
      table.insert(consumers[input.value], i)
    end
  end
  return consumers
end

--- The one node with a weight that reads, through operators that keep a cut, what node `i` gives; nil when others read
--- it too.
local function reader_of(graph, i, weighted, consumers)
  local seen, todo, reader = {}, {graph.nodes[i].outputs[1].value}, nil
  while #todo > 0 do
    local value = table.remove(todo)
    for _, k in ipairs(consumers[value] or {}) do
      local node = graph.nodes[k]
      if weighted[k] and node.inputs[1].value == value and (reader == nil or reader == k) then
        reader = k
      elseif not kPassing[node.op] or not node.outputs[1] then
        return nil
      elseif not seen[k] then
        seen[k] = true
        todo[#todo + 1] = node.outputs[1].value
      end
    end
  end
  return reader
end

--- Pairs of layers, the first to be cut by its outputs and the second by its inputs: {{i, k}, ...}, numbers of nodes.
--- Attention makes pairs of its three first layers with the last.
local function pairs_of_layers(graph)
  local weighted, consumers, role, found = weighted_nodes(graph), consumers_of(graph), {}, {}
  for i = 1, #graph.nodes do
    local k = weighted[i] and not role[i] and reader_of(graph, i, weighted, consumers)
    if k and graph.nodes[k].op == graph.nodes[i].op and role[k] ~= "first" then
      role[i], role[k] = "first", "second"
      found[#found + 1] = {i, k}
    end
  end
  return found
end

-- ---- Placements -----------------------------------------------------------------------------------------------------

--- `placement` on the mesh dim `dim` of `names`, Replicate on the others; the mesh dim of stages is none.
local function along(names, dim, placement)
  local list = {}
  for _, name in ipairs(names) do
    if name ~= "pp" then list[#list + 1] = name == dim and placement or mh.Replicate() end
  end
  return list
end

local function bias_of(node) return node.inputs[3] and node.inputs[3].parameter end

--- Tensor parallelism over the mesh dim "tp" among `names`.
function policies.tensor_cuts(graph, names)
  local parameter = {}
  for _, pair in ipairs(pairs_of_layers(graph)) do
    local first, second = graph.nodes[pair[1]], graph.nodes[pair[2]]
    parameter[first.inputs[2].parameter] = along(names, "tp", mh.Shard(0))
    if bias_of(first) then parameter[bias_of(first)] = along(names, "tp", mh.Shard(0)) end
    parameter[second.inputs[2].parameter] = along(names, "tp", mh.Shard(1))
  end
  return parameter
end

--- True if tensor parallelism would cut any parameter.
function policies.has_tensor_cuts(graph) return #pairs_of_layers(graph) > 0 end

--- `costs` in `count` runs of neighbours, none empty, the most expensive as cheap as can be: the lengths of the runs.
--- `elements`: each run has some; nil if that cannot be, or if it is left out, when any will do.
function policies.balanced_runs(costs, count, elements)
  local best = {[0] = {[0] = 0}}  -- best[c][n]: of the first n in c runs
  local cut = {}
  for c = 1, count do
    best[c], cut[c] = {}, {}
    for n = c, #costs - (count - c) do
      local run, held = 0, elements and 0 or 1
      for first = n, c, -1 do
        run, held = run + costs[first], held + (elements and elements[first] or 0)
        local worst = math.max(best[c - 1][first - 1] or math.huge, run)
        if held > 0 and worst < (best[c][n] or math.huge) then best[c][n], cut[c][n] = worst, first end
      end
    end
  end
  local sizes, n = {}, #costs
  if best[count][n] == nil then return nil end
  for c = count, 1, -1 do
    sizes[c] = n - cut[c][n] + 1
    n = cut[c][n] - 1
  end
  return sizes
end

--- Errors for options of a policy that are not among `known`.
--- `timed`: options that need a machine, where there is none.
function policies.check_options(name, options, known, timed)
  for key in pairs(options) do
    local found = false
    for _, one in ipairs(known) do found = found or one == key end
    for _, one in ipairs(not found and timed or {}) do
      if one == key then
        fail(("parallelize: policy '%s' has no option '%s' without a machine\n  have  pas_config = {%s}\n" ..
            "  fix   add pas_config.machine, a file of moonhalo calibrate or the name of a machine, or leave %s out")
          :format(name, key, table.concat(known, ", "), key))
      end
    end
    if not found then
      fail(("parallelize: policy '%s' has no option '%s'%s\n  have  pas_config = {%s}"):format(name, tostring(key),
        mh.did_you_mean(tostring(key), known), table.concat(known, ", ")))
    end
  end
end

local kPipeline = {"pipeline_nmicros", "pipeline_nstages", "pipeline_scheduler"}
policies.pipeline_options = kPipeline

--- The stages of a pipeline, as even in multiplications as module:stages() lets them be, each with parameters if there
--- are enough that have some.
function policies.stages_of(graph, count)
  if not graph.stage_macs then
    fail(("parallelize: a pipeline needs to know the stages of %s\n  fix   function %s:stages() return {self.first, "
      .. "self.second} end")
      :format(graph.class, graph.class))
  end
  if #graph.stage_macs < count then
    fail(("parallelize: %s asked for, %s:stages() gives %d\n  fix   smaller stages, or pas_config = "
      .. "{pipeline_nstages = %d}")
      :format(plural(count, "stage") .. (count == 1 and " was" or " were"), graph.class, #graph.stage_macs,
        #graph.stage_macs))
  end
  return policies.balanced_runs(graph.stage_macs, count, graph.stage_elements)
      or policies.balanced_runs(graph.stage_macs, count)
end

--- The most stages that a pipeline may have; 1 where there can be none.
function policies.most_stages(graph, config)
  if not config.use_end2end or config.use_async_reducer or config.reducer_bucket_cap_mb ~= 32 then return 1 end
  return math.max(1, #(graph.stage_macs or {}))
end

--- True if the stages and loss() of a module can be its forward.
function policies.can_be_pipeline(module, names) return #names == 1 and module:has("loss") end

--- Checks that the stages and loss() of a module can be its forward.
function policies.check_pipeline(module, names)
  local class = module:class_name()
  if #names ~= 1 then
    fail(("parallelize: forward(%s) of a pipeline takes one sample, whose list goes to the first stage\n" ..
      "  fix   function %s:forward(sample) ... end, for samples such as {x, target = y}"):format(
      table.concat(names, ", "), class))
  end
  if not module:has("loss") then
    fail(("parallelize: a pipeline needs to know the loss\n  fix   function %s:loss(output, sample) ... end"):format(
      class))
  end
end

-- ---- The policies ---------------------------------------------------------------------------------------------------

policies.builtin = {}

--- Units of one rank each: all ranks see other samples.
function policies.builtin.dp(_, config)
  policies.check_options("dp", config.pas_config, {})
  if config.plan_ngpus ~= 1 then
    fail(("parallelize: policy 'dp' divides nothing within a unit, plan_ngpus = %d\n" ..
        "  fix   plan_ngpus = 1, or the policy "
      .. "'data', which cuts a unit's samples")
      :format(config.plan_ngpus))
  end
  return {mesh = {{1}, {"dp"}}}
end

--- The samples of a unit are cut over its ranks.
function policies.builtin.data(_, config)
  policies.check_options("data", config.pas_config, {})
  return {mesh = {{config.plan_ngpus}, {"dp"}}, inputs = {dp = 0}}
end

--- Pairs of linear layers and of convolutions, and the layers of attention, are cut by features and channels.
function policies.builtin.tp(graph, config)
  policies.check_options("tp", config.pas_config, {})
  return {mesh = {{config.plan_ngpus}, {"tp"}}, parameter = policies.tensor_cuts(graph, {"tp"})}
end

--- Stages of a pipeline.
function policies.builtin.pp(graph, config)
  policies.check_options("pp", config.pas_config, kPipeline)
  local count = config.pas_config.pipeline_nstages or config.plan_ngpus
  return {mesh = {{config.plan_ngpus}, {"pp"}}, stages = policies.stages_of(graph, count)}
end

--- Stages of a pipeline, each divided as 'tp' does.
function policies.builtin.hybrid(graph, config)
  policies.check_options("hybrid", config.pas_config, kPipeline)
  local count = config.pas_config.pipeline_nstages or 2
  if config.plan_ngpus % count ~= 0 then
    fail(("parallelize: policy 'hybrid': plan_ngpus = %d is not a multiple of pipeline_nstages = %d"):format(
      config.plan_ngpus, count))
  end
  return {
    mesh = {{count, config.plan_ngpus // count}, {"pp", "tp"}}, parameter = policies.tensor_cuts(graph, {"pp", "tp"}),
    stages = policies.stages_of(graph, count),
  }
end

policies.names = {"autodist", "data", "dp", "hybrid", "pp", "tp"}

return policies
