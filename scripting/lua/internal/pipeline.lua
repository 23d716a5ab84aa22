-- SPDX-License-Identifier: Apache-2.0
-- mh.pipeline: a model whose stages are on different ranks. What a step does is decided in
-- engine/pipeline/pipeline.cpp.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local base = require "moonhalo.nn.module"
local containers = require "moonhalo.nn.containers"
local ordered_map = require "moonhalo.internal.ordered_map"
local is_mesh = require("moonhalo.internal.registered_mesh").is_mesh
local state = require "moonhalo.nn.state"
local strict = require "moonhalo.internal.strict"
local tree = require "moonhalo.internal.module_tree"

local fail, is_tensor, is_module = mh.fail, mh.is_tensor, base.is_module
local identity = mh._checkpoint_files.identity

-- ---- Stages ---------------------------------------------------------------------------------------------------------

local function balanced(count, parts)
  local sizes = {}
  for i = 1, parts do sizes[i] = count // parts + (i <= count % parts and 1 or 0) end
  return sizes
end

--- The children of a Sequential, in a Sequential for each stage.
local function cut_sequential(model, options, ranks)
  local children = model:children()
  local split = options.split or balanced(#children, options.stages or ranks)
  local stages, first = {}, 1
  for i, size in ipairs(split) do
    if size < 1 then
      fail(("pipeline: stage %d of %d has no module\n  have  a Sequential of %d modules"):format(i - 1, #split,
          #children))
    end
    stages[i] = containers.Sequential(table.unpack(children, first, math.min(first + size - 1, #children)))
    first = first + size
  end
  if first ~= #children + 1 then
    fail(("pipeline: split shares out %d modules, the Sequential has %d"):format(first - 1, #children))
  end
  return stages
end

--- The module that gives names, and a module for each stage.
local function stages_of(model, options, ranks)
  local is_sequential = is_module(model) and model:class_name() == "Sequential"
  if is_sequential then return model, cut_sequential(model, options, ranks) end
  if options.split ~= nil then
    fail("pipeline: split divides an nn.Sequential, and this model says what its stages are\n  fix   leave it out")
  end
  if is_module(model) then
    if not model:has("stages") then
      fail(("pipeline: %s does not say what its stages are\n" ..
          "  fix   give it a method stages() that returns a list of modules, or give "
        .. "mh.pipeline an nn.Sequential or a list of modules"):format(model:class_name()))
    end
    return model, model:stages()
  end
  if type(model) ~= "table" then fail("pipeline: expected a module or a list of modules, got " .. type(model)) end
  return containers.ModuleList(model), model
end

-- ---- Parameters -----------------------------------------------------------------------------------------------------

--- Checks that all is in a stage; the rest would never be trained.
local function check_owners(model, stages)
  local owned = {}
  for _, stage in ipairs(stages) do
    for _, module in stage:named_modules() do owned[module] = true end
  end
  for _, tensors in ipairs {"_parameters", "_buffers"} do
    for path, module in model:named_modules() do
      for name in rawget(module, tensors) do
        if not owned[module] then
          fail(("pipeline: '%s' is in no stage"):format(path == "" and name or path .. "." .. name))
        end
      end
    end
  end
end

--- A parameter on a mesh with the pipeline's dim is one of all ranks along it, which a stage has not.
local function check_meshes(model, mesh, dim)
  for name, tensor in model:named_parameters() do
    for _, own in ipairs(mesh:size(dim) > 1 and tensor:is_shard_tensor() and tensor.mesh.names or {}) do
      if own == dim then
        fail(("pipeline: '%s' lives on %s, whose ranks have different stages\n" ..
            "  fix   divide stages by parallelize = function(stage, "
          .. "slice) ... end, after which stages live on slices"):format(name, tensor.mesh))
      end
    end
  end
end

--- Every parameter that is in several stages: {numbers = {stage, ...}, slots = {{module, name, stage}, ...}}.
local function shared_tensors(stages)
  local found, list = {}, {}
  for number, stage in ipairs(stages) do
    for _, module in stage:named_modules() do
      for _, registry in ipairs {"_parameters", "_buffers"} do
        for name, tensor in rawget(module, registry) do
          local entry = found[tensor]
          if not entry then
            entry = {registry = registry, numbers = {}, slots = {}}
            found[tensor], list[#list + 1] = entry, entry
          end
          if entry.numbers[#entry.numbers] ~= number - 1 then entry.numbers[#entry.numbers + 1] = number - 1 end
          entry.slots[#entry.slots + 1] = {module = module, name = name, stage = number - 1}
        end
      end
    end
  end
  local shared = {}
  for _, entry in ipairs(list) do
    if #entry.numbers > 1 then shared[#shared + 1] = entry end
    if #entry.numbers > 1 and entry.registry == "_buffers" then
      fail(("pipeline: stages %s share the buffer '%s', which each would write for itself"):format(
        table.concat(entry.numbers, " and "), entry.slots[1].name))
    end
  end
  for _, entry in ipairs(shared) do
    for _, slot in ipairs(entry.slots) do  -- fully_shard cuts them in the same way in all stages
      local names = rawget(slot.module, "_shared_by_stages") or {}
      names[slot.name] = true
      rawset(slot.module, "_shared_by_stages", names)
    end
  end
  return shared
end

--- `parallelize` makes new tensors: what was one in several stages is so again on this rank, and its gradients are
--- added up over the ranks. Returns the parameters of this rank whose first stage is on another, and the first names of
--- all that are shared.
local function tie(engine, shared, path_of)
  local elsewhere, first_names = {}, {}
  for _, entry in ipairs(shared) do
    local own, first
    for _, slot in ipairs(entry.slots) do
      local place = path_of[slot.module]
      if not first or place.number < first.number then
        first = {number = place.number, name = place.path .. slot.name}
      end
      if engine:has_stage(slot.stage) then
        local tensors = rawget(slot.module, "_parameters")
        own = own or tensors[slot.name]
        tensors[slot.name] = own
      end
    end
    engine:tie(entry.numbers, own)
    if own then first_names[own] = first.name end
    if own and not engine:has_stage(entry.numbers[1]) then elsewhere[own] = true end
  end
  return elsewhere, first_names
end

--- Module -> its first path in the model, with a dot behind it, and the number of that.
local function paths_of(model)
  local found, count = {}, 0
  for path, module in model:named_modules() do
    count = count + 1
    found[module] = found[module] or {number = count, path = path == "" and "" or path .. "."}
  end
  return found
end

-- ---- Steps ----------------------------------------------------------------------------------------------------------

local Pipeline = {}
local meta = strict.class {name = "Pipeline", methods = Pipeline,
  fields = "mesh stages _engine _model _mine _stage_of _elsewhere _first_names _place _untrained"}

--- pipe.mesh -> DeviceMesh
---   The slice of the mesh that has this rank's stages: all dims but the pipeline's, or one rank if it has no others.
---   example
---     local pipe = mh.pipeline({nn.ReLU(), nn.ReLU(), nn.ReLU()}, {mesh = mesh, dim = "domain", micros = 1})
---     pipe.mesh:size()    --> 1

--- pipe.stages -> {Module}
---   The modules of all stages. Those of other ranks have the values that they had when the pipeline was made.
---   example
---     local pipe = mh.pipeline({nn.ReLU(), nn.ReLU(), nn.ReLU()}, {mesh = mesh, dim = "domain", micros = 1})
---     #pipe.stages    --> 3

--- The arguments of the first stage: a tensor, or the list part of a table.
local function inputs_of(op, samples)
  if type(samples) ~= "table" or getmetatable(samples) then
    fail(("%s: expected a list of samples, one for each micro-batch, got %s\n  fix   pipeline:%s({x, y}%s)"):format(op,
        mh._describe(samples), op, op == "train_step" and ", loss" or ""))
  end
  local inputs = {}
  for i, sample in ipairs(samples) do
    local list = is_tensor(sample) and {sample} or sample
    if type(list) ~= "table" or getmetatable(list) then
      fail(("%s: sample %d is %s\n" ..
          "  fix   give a tensor, or a table: its list goes to the first stage, all of it to the loss")
        :format(op, i, mh._describe(sample)))
    end
    for k, value in ipairs(list) do
      if not is_tensor(value) then
        fail(("%s: entry %d of sample %d is not a tensor but %s"):format(op, k, i, mh._describe(value)))
      end
    end
    inputs[i] = table.move(list, 1, #list, 1, {})
  end
  return inputs
end

local function each_tensor(value, visit)
  if is_tensor(value) then return visit(value) end
  if type(value) ~= "table" or getmetatable(value) then return end
  for _, one in pairs(value) do each_tensor(one, visit) end
end

--- Gradients end at the first stage, and only its ranks would have them.
local function check_not_computed(samples)
  for i, sample in ipairs(samples) do
    each_tensor(sample, function(x)
      if not x.requires_grad or x.is_leaf then return end
      fail(("train_step: sample %d was computed from tensors that require gradients, which would not come back from " ..
          "the pipeline"
        .. "\n  have  a tensor of shape [%s]\n" ..
            "  fix   put the layers before it into the first stage, or give x:detach()"):format(
        i, table.concat(x.shape, ", ")))
    end)
  end
end

local kTrainOptions = {"is_dummy_batch", "scale_fn"}

local function check_options(given)
  local options = arguments.options("train_step", given)
  for key in pairs(options) do arguments.choice("train_step", "option", key, kTrainOptions) end
  if options.is_dummy_batch ~= nil then arguments.flags("train_step", "is_dummy_batch", options.is_dummy_batch) end
  if options.scale_fn ~= nil then arguments.callable("train_step", "scale_fn", options.scale_fn) end
end

--- The engine's samples. What is wrong with arguments on one rank is an error on those, too, that have begun the step.
local function checked_inputs(engine, kind, samples, loss, options)
  local op = kind .. "_step"
  local right, inputs = pcall(function()
    local inputs = inputs_of(op, samples)
    if kind == "train" then check_not_computed(samples) end
    if (kind == "train" or loss ~= nil) and not arguments.is_callable(loss) then
      fail(("%s: loss is %s, expected a function\n" ..
          "  fix   pipeline:%s(samples, function(result, sample) ... end)"):format(op, mh._describe(loss), op))
    end
    check_options(options)
    return inputs
  end)
  if not right then engine:refuse_step(kind, (inputs:gsub("^[^\n]-:%d+: ", ""))) end  -- which adds the script's line
  return inputs
end

--- The engine calls it with the number of a micro-batch and the last stage's results.
local function loss_of_sample(samples, loss)
  return function(micro, ...)
    local given = table.pack(...)
    given[given.n + 1] = samples[micro]
    return loss(table.unpack(given, 1, given.n + 1))
  end
end

--- The parameters of this rank's stages.
local function own_parameters(self)
  local list = {}
  for _, tensor in self:named_parameters() do list[#list + 1] = tensor end
  return list
end

--- pipe:train_step(samples, loss, {is_dummy_batch = nil, scale_fn = nil}) -> {Tensor}
---   One step: the gradients of this rank's parameters become the sums of those of all micro-batches.
---   samples     {Tensor}|{table}   one for each micro-batch. Of a table, the list goes to the first stage, and all of
---     it to the loss
---   loss        function    loss(result, ..., sample): the last stage's results and the sample; it returns one number
---   is_dummy_batch   {boolean}?   one for each sample: true for those that take part and count nothing
---   scale_fn    function?   scale_fn(loss) gives the number from which backward starts
---   returns     {Tensor}    the losses, the same on all ranks
---   collective  over the mesh
---   errors      ValueError: as many samples as micro-batches are required; a stage or the loss uses a tensor that
---     requires a gradient and is not a parameter of the stage
---   errors      what a stage, loss or scale_fn raises on one rank is an error on all
---   example
---     local net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
---     local pipe = mh.pipeline(net, {mesh = mesh, dim = "domain", micros = 2})
---     local losses = pipe:train_step({mh.ones{3, 2}, mh.zeros{3, 2}}, function(y) return y:square():mean() end)
---     #losses, losses[1].shape    --> 2  {}
function Pipeline:train_step(samples, loss, options)
  local inputs = checked_inputs(self._engine, "train", samples, loss, options)
  local parameters = own_parameters(self)
  for _, parameter in ipairs(parameters) do parameter.grad = nil end
  return self._engine:train_step(inputs, loss_of_sample(samples, loss), parameters, options)
end

--- pipe:infer_step(samples, loss = nil) -> {Tensor}|{table}
---   What the last stage gives for each sample, without gradients.
---   samples     {Tensor}|{table}   as of train_step
---   loss        function?   as of train_step: its losses are returned instead
---   returns     {Tensor}|{table}   on all ranks, one for each sample: a tensor, or a list if the stage gives several
---   collective  over the mesh
---   errors      as train_step
---   example
---     local net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
---     local pipe = mh.pipeline(net, {mesh = mesh, dim = "domain", micros = 2})
---     pipe:infer_step{mh.ones{3, 2}, mh.ones{5, 2}}[2].shape    --> {5, 1}
function Pipeline:infer_step(samples, loss)
  local inputs = checked_inputs(self._engine, "infer", samples, loss)
  if loss ~= nil then return self._engine:infer_step(inputs, loss_of_sample(samples, loss)) end
  local results = self._engine:infer_step(inputs)
  for i, result in ipairs(results) do
    if #result == 1 then results[i] = result[1] end
  end
  return results
end

--- pipe:clip_grad_norm(max_norm, norm_type = 2.0) -> Tensor
---   Scales the gradients of all stages, in place, so that their joint norm is at most max_norm. Parameters that stages
---   share count once. The same as an optimizer's clip_gnorm and mh.clip_grad_norm of these parameters, also where a
---   rank's stages have none.
---   max_norm    number      not negative
---   norm_type   number      above 0; math.huge: the largest magnitude
---   returns     Tensor      the norm before, a float64
---   collective  over the mesh
---   errors      ValueError: a negative max_norm, or a norm_type that is not above 0
---   example
---     local net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1, {bias = false}))
---     local pipe = mh.pipeline(net, {mesh = mesh, dim = "domain", micros = 1})
---     pipe:train_step({mh.ones{3, 2}}, function(y) return y:mean() end)
---     pipe:clip_grad_norm(0.0)
---     pipe:clip_grad_norm(1.0):item()    --> 0.0
function Pipeline:clip_grad_norm(max_norm, norm_type)
  arguments.number("clip_grad_norm", "max_norm", max_norm)
  if norm_type ~= nil then arguments.number("clip_grad_norm", "norm_type", norm_type) end
  return self._engine:clip_grad_norm(own_parameters(self), max_norm, norm_type or 2.0):to("float64")
end

--- pipe:named_parameters() -> map
---   Name in the whole model and tensor of the parameters of this rank's stages, each once.
---   returns     map         ordered, by name
---   collective  no
---   example
---     local along = mh.init_device_mesh(mh.device(), {1, mh.world_size()}, {"pp", "dp"})  -- all stages on every rank
---     local pipe = mh.pipeline({nn.Linear(2, 4, {bias = false}), nn.Linear(4, 1)}, {mesh = along, micros = 1})
---     for name in pipe:named_parameters() do print(name) end    --> 0.weight | 1.weight | 1.bias
function Pipeline:named_parameters()
  local found, seen = ordered_map(), {}
  for path, module in self._model:named_modules() do
    for name, tensor in module._parameters do
      if self._mine[module] and not seen[tensor] then
        seen[tensor] = true
        found[path == "" and name or path .. "." .. name] = tensor
      end
    end
  end
  return found
end

--- pipe:parameters() -> {Tensor}
---   The parameters of this rank's stages, each once, for an optimizer.
---   returns     {Tensor}    in the order of named_parameters()
---   collective  no
---   errors      ValueError, on all ranks: the stages of some rank have no parameters
---   example
---     local along = mh.init_device_mesh(mh.device(), {1, mh.world_size()}, {"pp", "dp"})  -- all stages on every rank
---     local pipe = mh.pipeline({nn.Linear(2, 4), nn.Linear(4, 1)}, {mesh = along, micros = 1})
---     #pipe:parameters()    --> 4
function Pipeline:parameters()
  if self._untrained then fail(self._untrained) end
  return own_parameters(self)
end

--- An error message if a rank's stages have no parameters, the same on all ranks.
local function rank_without_parameters(stages, dim, size)
  for rank = 0, size - 1 do
    local has_some, kinds = false, {}
    for stage = rank, #stages - 1, size do
      has_some = has_some or #stages[stage + 1]:parameters() > 0
      kinds[#kinds + 1] = ("stage %d: %s"):format(stage, tostring(stages[stage + 1]):gsub("%s+", " "))
    end
    if not has_some then
      return ("pipeline: rank %d of %d along '%s' has no parameters, so an optimizer there would have none\n" ..
        "  have  %s\n  fix   give each stage a module with parameters, by split = {modules of each stage}, or use " ..
        "fewer ranks"):format(rank, size, dim, table.concat(kinds, ", "))
    end
  end
end

local function module_of(self, name) return self._model:get_submodule(name:match("^(.*)%.[^.]+$") or "") end

--- pipe:state_dict() -> map
---   The whole model's parameters and persistent buffers by name, on all ranks: those of other ranks' stages are copied
---   here. The model's own state_dict has trained values only of this rank's stages.
---   returns     map         ordered: state["0.weight"], pairs(state)
---   collective  over the mesh
---   example
---     local net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
---     local pipe = mh.pipeline(net, {mesh = mesh, dim = "domain", micros = 2})
---     pipe:state_dict()["2.weight"].shape    --> {1, 4}
function Pipeline:state_dict()
  local found, names_of_stage = state.state_dict(self._model), {}
  for name in found do
    local stage = self._stage_of[module_of(self, name)]
    names_of_stage[stage] = names_of_stage[stage] or {}
    table.insert(names_of_stage[stage], name)
  end
  for stage = 0, #self.stages - 1 do
    local names, tensors = names_of_stage[stage] or {}, {}
    for i, name in ipairs(self._engine:has_stage(stage) and names or {}) do tensors[i] = found[name] end
    for i, tensor in ipairs(self._engine:from_stage(stage, tensors)) do found[names[i]] = tensor end
  end
  return found
end

--- The model's tensors by name, those of other stages as they are here: what the whole model has, not its values.
function Pipeline:_whole_model()
  return {
    state_dict = function() return state.state_dict(self._model) end,
    class_name = function() return "Pipeline" end,
  }
end

--- The tensors of this rank's stages by their names in the whole model. `first`: less those that earlier stages have,
--- too.
function Pipeline:_own_state(first)
  local found = ordered_map()
  for name, tensor in state.state_dict(self._model) do
    local module = module_of(self, name)
    if self._mine[module] and not (first and not self._engine:has_stage(self._stage_of[module])) then
      found[name] = tensor
    end
  end
  return found
end

--- The names in the whole model of an optimizer's parameters by position, which are all of this pipeline's, and those
--- positions whose parameters other ranks have, too, and save.
function Pipeline:_names_of(optimizer)
  local known, elsewhere, names, skipped = {}, {}, {}, {}
  for name, parameter in self:named_parameters() do
    known[identity(parameter)] = self._first_names[parameter] or name
    elsewhere[identity(parameter)] = self._elsewhere[parameter]
  end
  for _, group in ipairs(optimizer.param_groups) do
    for _, parameter in ipairs(group.params) do
      names[#names + 1] = known[identity(parameter)]
      skipped[#names] = elsewhere[identity(parameter)]
    end
  end
  return names, skipped
end

--- pipe:load_state_dict(state, options = nil) -> table
---   Copies values into this rank's stages. Names and shapes are checked against the whole model.
---   state       table       tensors by name, as of net:load_state_dict
---   options     table?      as of net:load_state_dict
---   returns     table       {missing_keys, unexpected_keys}: lists of names that were left over on either side
---   collective  over the meshes of tensors that are placed otherwise
---   errors      ValueError: names, shapes or dtypes differ, with all of them; nothing has changed then
---   example
---     local function make() return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)) end
---     local pipe, net = mh.pipeline(make(), {mesh = mesh, dim = "domain", micros = 2}), make()
---     pipe:load_state_dict(net:state_dict())
---     pipe:state_dict()["2.weight"]:equal(net[2].weight)    --> true
function Pipeline:load_state_dict(given, options)
  local _, tensors, result = state.check(self:_whole_model(), given, options)
  mh.no_grad(function()
    for name, target in self:_own_state() do
      if tensors[name] ~= nil then target:copy_(tensors[name]) end
    end
  end)
  return result
end

--- pipe:forward(...) -> nothing
---   Always an error, as pipe(...): the stages are on different ranks.
---   returns     nothing
---   collective  no
---   errors      ValueError: always
---   example
---     local pipe = mh.pipeline({nn.ReLU(), nn.ReLU(), nn.ReLU()}, {mesh = mesh, dim = "domain", micros = 1})
---     (pcall(pipe.forward, pipe))    --> false
function Pipeline.forward(...)  -- luacheck: ignore
  fail("pipeline: its stages are on different ranks, it has no forward\n  fix   pipeline:train_step(samples, loss) or "
    .. "pipeline:infer_step(samples)")
end
meta.__call = Pipeline.forward

function meta:__tostring()
  return ("Pipeline of %d stages\n%s"):format(#self.stages, self._engine.schedule)
end

local all_pipelines = require("moonhalo.internal.registries").all_pipelines

local function refuse_state_dict(module)
  fail(module:class_name()
      .. ": state_dict: this rank trains some stages of a pipeline, the others are as they were at the "
    .. "start\n  fix   save the pipeline: pipeline:state_dict(), or checkpoint.save(path, {model = pipeline})")
end

-- ---- mh.pipeline ----------------------------------------------------------------------------------------------------

local kSignature = arguments.signature("pipeline", {
  "model", "mesh", "micros", {"dim", "pp"}, {"schedule", "1f1b"}, arguments.optional "stages",
  arguments.optional "split", arguments.optional "parallelize",
})

--- mh.pipeline(model, mesh, micros, {dim = "pp", schedule = "1f1b", stages = nil, split = nil,
---     parallelize = nil}) -> Pipeline
---   Puts the stages of a model on the ranks along a mesh dim: mh.pipeline(model, {mesh = mesh, micros = 8}).
---   Parameters that mh.deferred_init made get memory for this rank's stages alone. A parameter that several stages
---   have is one: its gradients are added.
---   model       Module|{Module}   an nn.Sequential, whose children are divided; a module with a method stages() that
---     returns a list of modules; or that list
---   mesh        DeviceMesh  the mesh
---   micros      integer     micro-batches of a step
---   dim         string      the mesh dim of the stages; stage s is on rank s modulo their number
---   schedule    "1f1b"|"gpipe"|"interleaved_1f1b"   the order of forwards and backwards
---   stages      integer?    number of stages; nil for one on each rank
---   split       {integer}?   children of each stage, {3, 2}; nil divides them evenly
---   parallelize   function?   parallelize(stage, mesh, number) divides a stage over the slice of the mesh that has it
---   returns     Pipeline    whose train_step and infer_step run the model
---   collective  over the mesh
---   errors      ValueError: no mesh, or stages that do not have all parameters of the model
---   example
---     local along = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"pp"})
---     local pipe = mh.pipeline(nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)), {mesh = along, micros = 2})
---     local losses = pipe:train_step({mh.ones{3, 2}, mh.zeros{3, 2}}, function(y) return y:square():mean() end)
---     #losses, #pipe:infer_step{mh.ones{3, 2}, mh.zeros{3, 2}}    --> 2  2
local function pipeline(...)
  local given = arguments.read(kSignature, ...)
  if not is_mesh(given.mesh) then
    fail(("pipeline: mesh is not a mesh but %s\n  have  %s\n" ..
      "  fix   mh.pipeline(net, {mesh = mesh, micros = 8})"):format(mh._describe(given.mesh), tostring(given.mesh)))
  end
  if given.stages ~= nil then arguments.count("pipeline", "stages", given.stages, 1) end
  if given.split ~= nil then arguments.counts("pipeline", "split", given.split) end
  if given.parallelize ~= nil then arguments.callable("pipeline", "parallelize", given.parallelize) end
  local model, stages = stages_of(given.model, given, given.mesh:size(given.dim))
  if given.stages ~= nil and given.stages ~= #stages then
    fail(("pipeline: stages is %d, the model has %d\n  fix   leave stages out"):format(given.stages, #stages))
  end
  for i, stage in ipairs(stages) do
    if not is_module(stage) then
      fail(("pipeline: stage %d is not a module but %s"):format(i - 1, mh._describe(stage)))
    end
  end
  check_owners(model, stages)
  check_meshes(model, given.mesh, given.dim)
  local shared = shared_tensors(stages)
  local engine
  local function set_up(stage, number)
    if given.parallelize then given.parallelize(stage, engine.mesh, number) end
    mh.materialize_module(stage)
  end
  local callable = {table.unpack(stages)}
  callable[1] = tree.taking_inputs(stages[1])
  if mh.backend() == "fake" then
    for i, stage in ipairs(stages) do
      local ready, call = false, callable[i]
      callable[i] = function(...)
        if not ready and not engine:has_stage(i - 1) then set_up(stage, i - 1) end
        ready = true
        return call(...)
      end
    end
  end
  engine = mh._pipeline(given.mesh, given.dim, callable, {schedule = given.schedule, micros = given.micros})
  local mine, stage_of = {}, {}
  for i, stage in ipairs(stages) do
    for _, module in stage:named_modules() do stage_of[module] = stage_of[module] or i - 1 end
    if engine:has_stage(i - 1) then
      set_up(stage, i - 1)
      for _, module in stage:named_modules() do mine[module] = true end
    end
  end
  local elsewhere, first_names = tie(engine, shared, paths_of(model))
  local made = setmetatable({
    mesh = engine.mesh, stages = stages, _engine = engine, _model = model, _mine = mine, _stage_of = stage_of,
    _elsewhere = elsewhere, _first_names = first_names, _place = given.mesh:coordinate(given.dim),
    _untrained = rank_without_parameters(stages, given.dim, given.mesh:size(given.dim)),
  }, meta)
  if given.mesh:size(given.dim) > 1 then
    for _, module in ipairs {model, table.unpack(stages)} do rawset(module, "state_dict", refuse_state_dict) end
  end
  engine:hold(own_parameters(made))
  all_pipelines[made] = true
  return made
end

--- The pipeline of which an optimizer has parameters, and whether it has others, too.
local function trained_by(optimizer)
  local owners, found, others = {}, nil, false
  for pipe in pairs(all_pipelines) do
    for _, parameter in ipairs(own_parameters(pipe)) do owners[identity(parameter)] = pipe end
  end
  for _, group in ipairs(optimizer.param_groups) do
    for _, parameter in ipairs(group.params) do
      local pipe = owners[identity(parameter)]
      others = others or pipe == nil or (found ~= nil and pipe ~= found)
      found = found or pipe
    end
  end
  return found, others
end

local function is_pipeline(value) return all_pipelines[value] ~= nil end

return {pipeline = pipeline, trained_by = trained_by, is_pipeline = is_pipeline}
