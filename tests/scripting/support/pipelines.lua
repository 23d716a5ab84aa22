-- SPDX-License-Identifier: Apache-2.0
-- N15-N20, V12: pipelines of modules over all ranks of a run, against the same model on one rank.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local models = require "support.pipeline_models"
local nn, optim = mh.nn, mh.optim
local mlp, seeded, samples, loss_of = models.mlp, models.seeded, models.samples, models.loss_of
local words, cross_entropy = models.words, models.cross_entropy

local ranks = mh.world_size()
local line = mh.init_device_mesh(mh.device(), {ranks}, {"pp"})
local alone = mh.init_device_mesh(mh.device(), {1, ranks}, {"pp", "others"})  -- the whole pipeline on every rank
local kF64 = {dtype = "float64"}
local tests = {}

local function gradients(parameters)
  local found = {}
  for name, parameter in parameters do found[name] = parameter.grad end
  return found
end

--- This rank's part of `expected`.
local function expect_gradients(pipe, expected)
  for name, parameter in pipe:named_parameters() do testing.assert_close(parameter.grad, expected[name]) end
end

local kSchedules = {"gpipe", "interleaved_1f1b", ranks == 4 and "gpipe" or "1f1b"}

function tests.test_N17_N18_gradients_are_sums_over_micro_batches_and_start_at_zero()
  local whole, batches = seeded(mlp):eval(), samples(5)
  local expected_losses = {}
  for i, sample in ipairs(batches) do
    local loss = loss_of(whole(sample[1]), sample)
    loss:backward()
    expected_losses[i] = loss:detach()
  end
  local expected = gradients(whole:named_parameters())
  for _, schedule in ipairs(kSchedules) do
    local pipe = mh.pipeline(seeded(mlp):eval(), {mesh = line, micros = 5, schedule = schedule})

    for _ = 1, 2 do
      local losses = pipe:train_step(batches, loss_of)

      testing.assert_equal(#losses, 5)
      for i, loss in ipairs(losses) do testing.assert_close(loss, expected_losses[i]) end
      expect_gradients(pipe, expected)
    end
  end
end

function tests.test_N17_dummy_batches_and_scales()
  local whole, batches = seeded(mlp):eval(), samples(3)
  for _, i in ipairs {1, 3} do (loss_of(whole(batches[i][1]), batches[i]) * 8):backward() end
  local pipe = mh.pipeline(seeded(mlp):eval(), line, 3)
  local function step()
    local losses = pipe:train_step(batches, loss_of, {is_dummy_batch = {false, true, false},
        scale_fn = function(loss) return loss * 8 end})
    expect_gradients(pipe, gradients(whole:named_parameters()))
    return losses
  end

  testing.assert_close(step()[2], loss_of(whole(batches[2][1]), batches[2]):detach())
  batches[2][1]:fill_(0 / 0)  -- harms no gradient
  testing.assert_equal(step()[2]:isnan():item(), true)
end

function tests.test_N18_training_with_dropout_is_that_of_one_rank()
  local function train(mesh, schedule)
    local model = seeded(mlp)
    local pipe = mh.pipeline(model, {mesh = mesh, micros = 4, stages = ranks, schedule = schedule})
    local opt = optim.AdamW(pipe:parameters(), {lr = 0.05})
    mh.manual_seed(7)
    local losses = {}
    for step = 1, 3 do
      losses[step] = mh.stack(pipe:train_step(samples(4), loss_of))
      opt:step()
    end
    return mh.stack(losses), pipe
  end
  local expected, whole = train(alone, "1f1b")
  local values = {}
  for name, parameter in whole:named_parameters() do values[name] = parameter end
  for _, schedule in ipairs(kSchedules) do
    local losses, pipe = train(line, schedule)
    testing.assert_equal(losses, expected)
    for name, parameter in pipe:named_parameters() do testing.assert_equal(parameter, values[name]) end
  end
end

function tests.test_N19_inference_gives_a_list_on_all_ranks()
  local whole, batches = seeded(mlp):eval(), samples(3)
  local pipe = mh.pipeline(seeded(mlp):eval(), {mesh = line, micros = 3})

  local results = pipe:infer_step(batches)

  testing.assert_equal(#results, 3)
  for i, result in ipairs(results) do
    testing.assert_close(result, whole(batches[i][1]):detach())
    testing.assert_equal(result.requires_grad, false)
  end
end

-- Only this rank's stages are made, and have the values of the whole model.
function tests.test_V12_stages_of_others_stay_deferred()
  local expected = seeded(mlp):state_dict()
  local model = seeded(mh.deferred_init, mlp, {min_numel = 0})
  local pipe = mh.pipeline(model, {mesh = line, micros = 2})
  local mine = {}
  for name, parameter in pipe:named_parameters() do
    mine[name] = true
    testing.assert_equal(parameter, expected[name])
  end
  local count = 0
  for name, parameter in model:named_parameters() do
    testing.assert_equal(parameter:is_deferred(), not mine[name])
    if mine[name] then count = count + 1 end
  end
  testing.assert_equal(count > 0 and count < 10, true)
  pipe:train_step(samples(2), loss_of)
end

local kWords = {{mh.tensor{1, 2, 3}, target = mh.tensor{2, 3, 4}}, {mh.tensor{6, 6}, target = mh.tensor{0, 1}}}

--- Three steps; the norms of the gradients before they were clipped, and the losses.
local function train_words(model, step, clip, parameters)
  local opt, found = optim.SGD(parameters, {lr = 0.5}), {}
  for _ = 1, 3 do
    for _, loss in ipairs(step(model)) do found[#found + 1] = loss end
    found[#found + 1] = clip(0.1, opt)
    opt:step()
  end
  return found
end

function tests.test_V12_N18_N34_skips_and_shared_weights()
  for _, p in ipairs {2.0, 1.0, math.huge} do
    local whole = seeded(words)
    local expected = train_words(whole, function(model)
      model:zero_grad()
      local losses = {}
      for i, sample in ipairs(kWords) do
        local loss = cross_entropy(model(sample[1]), sample)
        loss:backward()
        losses[i] = loss:detach()
      end
      return losses
    end, function(most) return mh.clip_grad_norm(whole:parameters(), most, {norm_type = p}) end, whole:parameters())
    local ways = {
      function(pipe, most) return pipe:clip_grad_norm(most, p) end,
      function(_, most, opt) return opt:clip_gnorm(most, p) end,
      function(pipe, most) return mh.clip_grad_norm(pipe:parameters(), most, {norm_type = p}) end,
    }
    for i, clip in ipairs(ways) do
      local model = i == 2 and seeded(mh.deferred_init, words, {min_numel = 0}) or seeded(words)
      local pipe = mh.pipeline(model, {mesh = line, micros = 2, schedule = "gpipe"})
      local found = train_words(pipe, function() return pipe:train_step(kWords, cross_entropy) end,
        function(most, opt) return clip(pipe, most, opt) end, pipe:parameters())
      for k, number in ipairs(expected) do testing.assert_close(found[k], number) end
    end
  end
end

-- Each stage's parameters in blocks, or copied, over the ranks of its slice; samples of each rank's own, of the last
-- none.
if ranks % 2 == 0 then
  function tests.test_N04_N34_stages_whose_ranks_have_samples_of_their_own()
    local places = ranks // 2
    local mesh = mh.init_device_mesh(mh.device(), {2, places}, {"pp", "dp"})
    local function model() return seeded(mlp):eval() end
    mh.manual_seed(6)
    local whole_batches, own, first = {}, {}, math.max(0, mesh:coordinate("dp") + 1)
    for i = 1, 3 do
      local x, y = mh.randn({places + 1, 6}, kF64), mh.randn({places + 1, 3}, kF64)
      local rows = places == 1 and 2 or first == 1 and 3 or first == places and 0 or 1
      local begin = first == 1 and 0 or math.min(first + 1, places + 1)
      whole_batches[i] = {x, target = y}
      own[i] = {x:narrow(0, begin, rows), target = y:narrow(0, begin, rows)}
    end
    local whole = model()
    for _, sample in ipairs(whole_batches) do loss_of(whole(sample[1]), sample):backward() end
    local expected = gradients(whole:named_parameters())
    local initial = model():state_dict()
    local norm = mh.clip_grad_norm(whole:parameters(), math.huge)
    local ways = {
      function(stage, slice) mh.fully_shard(stage, {mesh = slice, min_numel = 1}) end,
      function(stage) mh.fully_shard(stage, {mesh = mesh["dp"], min_numel = 1, reshard_after_backward = false}) end,
      function(stage, slice) mh.replicate(stage, {mesh = slice["dp"]}) end,
    }
    for _, place in ipairs(ways) do
      local pipe = mh.pipeline(model(), {mesh = mesh, micros = 3, schedule = "gpipe", parallelize = place})
      for name, parameter in pipe:named_parameters() do
        testing.assert_close(parameter:detach():full_tensor(), initial[name])
      end
      local opt = optim.SGD(pipe:parameters(), {lr = 0.5})
      pipe:train_step(own, function(y, sample) return mh.mse_loss(y, mh.local_batch(sample.target, mesh["dp"])) end)
      opt:sync_shard_grad()
      for name, parameter in pipe:named_parameters() do
        testing.assert_close(parameter.grad:full_tensor(), expected[name])
      end
      testing.assert_close(opt:clip_gnorm(1e9), norm)
    end
  end
end

-- A stage writes what it has handed on already.
function tests.test_N15_buffers_that_stages_hand_on_are_those_of_their_time()
  local Counting = nn.Module:extend("Counting")
  function Counting:init() self:register_buffer("count", mh.zeros({3000, 6}, kF64)) end
  function Counting:forward(x)
    self.count:add_(1)
    return x, self.count
  end
  local Last = nn.Module:extend("Last")
  function Last:init() self.scale = nn.Parameter(mh.ones({6}, kF64)) end
  function Last:forward(x, count) return (x * 0 + count[0] * self.scale):sum{dim = 1} end
  local Passing = nn.Module:extend("Passing")
  function Passing:forward(...) return ... end
  for _, mesh in ipairs {line, alone} do
    for _, schedule in ipairs {"gpipe", "interleaved_1f1b"} do
      local stages = {Counting()}
      for i = 2, math.max(ranks, 2) - 1 do stages[i] = Passing() end
      stages[#stages + 1] = Last()
      local pipe = mh.pipeline(stages, {mesh = mesh, micros = 4, schedule = schedule})
      local losses = pipe:train_step(samples(4), function(y) return y:mean() end)
      for i, loss in ipairs(losses) do testing.assert_close(loss:item(), 6.0 * i) end
    end
  end
end

-- Two stages on one rank, each divided by itself.
function tests.test_V12_shared_weights_stay_one_on_a_rank()
  local function pair()
    local first, second = nn.Linear(6, 6, {bias = false}):double(), nn.Linear(6, 6, {bias = false}):double()
    second.weight = first.weight
    return first, second
  end
  local first, second = seeded(pair)
  for _, sample in ipairs(samples(2)) do second(first(sample[1]):tanh()):square():mean():backward() end
  local a, b = seeded(pair)
  local pipe = mh.pipeline({nn.Sequential(a, nn.Tanh()), b}, {mesh = alone, micros = 2,
    parallelize = function(stage, slice) mh.parallelize_module(stage, slice, {}) end})

  pipe:train_step(samples(2), function(y) return y:square():mean() end)

  testing.assert_equal(#pipe:parameters(), 1)
  testing.assert_equal(a.weight == b.weight, true)
  testing.assert_close(b.weight.grad:full_tensor(), first.weight.grad)
end

function tests.test_N15_N16_N20_refusals()
  local pipe = mh.pipeline(mlp(), {mesh = line, micros = 2})
  testing.assert_error(function() pipe(mh.ones{2, 6}) end, "it has no forward\n  fix   pipeline:train_step")
  testing.assert_error(function() pipe:forward(mh.ones{2, 6}) end, "it has no forward")
  testing.assert_error(function() pipe:train_step(samples(3), loss_of) end, "train_step: 3 samples for 2 micro-batches")
  testing.assert_error(function() pipe:infer_step(samples(1)) end, "infer_step: 1 samples for 2 micro-batches")
  testing.assert_error(function() pipe:infer_step{1, 2} end, "sample 1 is 1")
  testing.assert_error(function() pipe:infer_step{{mh.ones{2, 6}, "x"}, {}} end,
      "entry 2 of sample 1 is not a tensor but 'x'")
  testing.assert_error(function() mh.pipeline(mlp(), {mesh = line}) end, "pipeline: 'micros' is missing")
  testing.assert_error(function() mh.pipeline(mlp(), {mesh = line, micros = 2, shedule = "gpipe"}) end,
      "did you mean 'schedule'")
  testing.assert_error(function() mh.pipeline(mlp(), {mesh = line, micros = 2, schedule = "2f1b"}) end,
      "did you mean '1f1b'")
  testing.assert_error(function() mh.pipeline(mlp(), {mesh = line, micros = 2, stages = 9}) end,
      "stage 8 of 9 has no module")
  testing.assert_error(function() mh.pipeline(mlp(), {mesh = line, micros = 2, split = {4, 3}}) end,
      "shares out 7 modules, the Sequential has 8")
  for option, message in pairs {stages = "stages is 'a', expected an integer of at least 1",
    split = "split is 'a', expected a list of integers", parallelize = "parallelize is 'a', expected a function"} do
    testing.assert_error(function() mh.pipeline(mlp(), {mesh = line, micros = 2, [option] = "a"}) end,
        "pipeline: " .. message)
  end
  testing.assert_error(function() mh.pipeline(mlp(), {mesh = line, micros = 2, stages = 3, split = {4, 4}}) end,
      "pipeline: stages is 3, the model has 2")
  testing.assert_error(function() mh.pipeline({mlp(), mlp()}, {mesh = line, micros = 2, split = {1, 1}}) end,
      "pipeline: split divides an nn.Sequential, and this model says what its stages are\n  fix   leave it out")
  testing.assert_error(function() mh.pipeline(nn.Linear(2, 2), {mesh = line, micros = 2}) end,
      "Linear does not say what its stages are")
  testing.assert_error(function() mh.pipeline({mlp(), 3}, {mesh = line, micros = 2}) end, "is not a module")
  local Loose = nn.Module:extend("Loose")
  function Loose:init() self.layers, self.scale = nn.Linear(2, 2), nn.Parameter(mh.ones{1}) end
  function Loose:stages() return {self.layers} end
  testing.assert_error(function() mh.pipeline(Loose(), {mesh = alone, micros = 2}) end, "'scale' is in no stage")
  testing.assert_error(function() mh.pipeline(mh.replicate(mlp(), {mesh = line}), {mesh = line, micros = 2}) end,
    "pipeline: '0.weight' lives on " .. tostring(line)
      .. ", whose ranks have different stages\n  fix   divide stages by parallelize")
  local norm = nn.BatchNorm1d(3)
  local both = {}
  for i = 1, ranks do both[i] = nn.Sequential(norm) end
  testing.assert_error(function() mh.pipeline(both, {mesh = line, micros = 2}) end, "share the buffer 'running_mean'")
end

local folder = require "support.own_path"

function tests.test_checkpoints_hold_what_all_stages_have_trained()
  local path = folder("trained")
  local function trained(mesh)
    local model = seeded(mh.deferred_init, mlp, {min_numel = 0})
    local pipe = mh.pipeline(model, {mesh = mesh, micros = 2, schedule = "gpipe", stages = 4 % ranks == 0 and 4
        or ranks})
    local opt = optim.SGD(pipe:parameters(), {lr = 0.5})
    return pipe, model, opt
  end
  local pipe, model, opt = trained(line)
  pipe:train_step(samples(2), loss_of)
  opt:step()
  mh.checkpoint.save(path, {model = pipe})
  local state = pipe:state_dict()

  local whole = seeded(mlp):eval()
  mh.checkpoint.load(path, {model = whole})
  for name, tensor in whole:state_dict() do testing.assert_equal(state[name], tensor) end
  for name, parameter in pipe:named_parameters() do
    testing.assert_equal(parameter:detach(), whole:get_parameter(name):detach())
  end
  local again, second = trained(line)
  mh.checkpoint.load(path, {model = again})
  second:eval()
  model:eval()
  testing.assert_equal(mh.equal(again:infer_step(samples(2))[1], pipe:infer_step(samples(2))[1]), true)

  testing.assert_error(function() model:state_dict() end, "fix   save the pipeline: pipeline:state_dict()")
  testing.assert_error(function() mh.checkpoint.save(path, {model = model}) end,
      "this rank trains some stages of a pipeline")
end

local function adam(parameters) return optim.AdamW(parameters, {lr = 0.05}) end
local function step_words(pipe, opt)
  local losses = mh.stack(pipe:train_step(kWords, cross_entropy))
  opt:step()
  return losses
end
local function words_on(mesh)
  return mh.pipeline(seeded(words), {mesh = mesh, micros = 2, schedule = "gpipe", stages = ranks})
end

-- Nothing but names, numbers and blocks of its own comes to a rank. The weights that two stages share have one state.
function tests.test_N37_N41_states_of_optimizers_of_pipelines()
  for _, async in ipairs {false, true} do
    local path = folder("states")
    local pipe = words_on(line)
    local opt = adam(pipe:parameters())
    step_words(pipe, opt)
    local saving = mh.checkpoint.save(path, {model = pipe, opt = opt, step = 1}, {async = async})
    if async then saving:wait() end
    local names = {}
    for _, pair in ipairs((mh.safetensors.load(path .. "/opt.safetensors"))) do names[pair[1]] = true end
    local copied = words_on(line)
    copied:load_state_dict(pipe:state_dict())
    testing.assert_equal({names["exp_avg/table.weight"], names["exp_avg/last.table.weight"]}, {true, nil})
    local expected = step_words(pipe, opt)
    local after = step_words(pipe, opt)
    testing.assert_close(step_words(copied, adam(copied:parameters())), expected)

    -- On as many ranks, on every rank alone, and as one module.
    for _, mesh in ipairs {line, alone} do
      local again = words_on(mesh)
      local turned = again:parameters()
      for i = 1, #turned // 2 do turned[i], turned[#turned + 1 - i] = turned[#turned + 1 - i], turned[i] end
      local second = adam(turned)
      testing.assert_equal(mh.checkpoint.load(path, {model = again, opt = second}).step, 1)
      testing.assert_close(step_words(again, second), expected)
      testing.assert_close(step_words(again, second), after)
    end
    local whole = words()
    local single = adam(whole:parameters())
    mh.checkpoint.load(path, {model = whole, opt = single})
    whole:zero_grad()
    local losses = {}
    for i, sample in ipairs(kWords) do
      losses[i] = cross_entropy(whole(sample[1]), sample)
      losses[i]:backward()
    end
    testing.assert_close(mh.stack(losses):detach(), expected)
    mh.checkpoint.save(folder("single"), {model = whole, opt = single})
    local back = words_on(line)
    mh.checkpoint.load(folder("single"), {model = back, opt = adam(back:parameters())})
    mh.barrier()
  end
end

function tests.test_N41_states_that_a_stage_misses_are_told_on_every_rank()
  local path = folder("missing")
  local pipe = words_on(line)
  local parameters = {}
  for name, parameter in pipe:named_parameters() do
    if not name:find("^last") then parameters[#parameters + 1] = parameter end
  end
  local opt = adam(parameters)
  step_words(pipe, opt)
  mh.checkpoint.save(path, {model = pipe, opt = opt})
  local before = pipe:state_dict()["first.mix.weight"]:clone()
  step_words(pipe, opt)
  local other = pipe:state_dict()["first.mix.weight"]:clone()
  local all = adam(pipe:parameters())
  testing.assert_equal(mh.equal(before, other), false)
  -- Names of other stages are none of this rank's business; a dtype of its own is.
  local wrong = mh.pipeline(seeded(function() return words():float() end),
      {mesh = line, micros = 2, schedule = "gpipe", stages = ranks})
  testing.assert_error(function() mh.checkpoint.load(path, {model = wrong, opt = all}) end,
      "is float64, the module's is float32; strict = false casts")
  mh.checkpoint.load(path, {model = pipe, opt = all})
  testing.assert_equal(mh.equal(pipe:state_dict()["first.mix.weight"], before), true)
  local loose = nn.Linear(2, 2):double()
  local both = pipe:parameters()
  both[#both + 1] = loose.weight
  testing.assert_error(function() mh.checkpoint.save(path, {model = pipe, opt = adam(both)}) end,
      "an optimizer has parameters of a pipeline and others, too")
  local uneven = optim.AdamW(pipe:parameters(), {lr = 0.01 * (mh.rank() + 1)})
  testing.assert_error(function() mh.checkpoint.save(path, {model = pipe, opt = uneven}) end,
      "the optimizers of places 0 and 1 of a pipeline differ in groups or options")
end

-- One tensor for one micro-batch and two for the next.
local Varying = nn.Module:extend("Varying")
function Varying:init() self.fc, self.turn = nn.Linear(6, 3), 0 end
function Varying:forward(x)
  self.turn = self.turn + 1
  local h = self.fc(x)
  if self.turn % 2 == 1 then return h end
  return h, h * 2
end
local Adding = nn.Module:extend("Adding")
function Adding:init() self.fc = nn.Linear(3, 3) end
function Adding:forward(a, b) return self.fc(b and a + b or a) end

function tests.test_N15_stages_may_give_other_numbers_of_tensors_next_time()
  local function stages()
    local list = {seeded(Varying):double()}
    for i = 2, ranks do list[i] = Adding():double() end
    return list
  end
  local expected, whole = {}, stages()
  for i, sample in ipairs(samples(4)) do
    local values = table.pack(sample[1])
    for _, stage in ipairs(whole) do values = table.pack(stage(table.unpack(values, 1, values.n))) end
    expected[i] = loss_of(values[1], sample):item()
  end

  local losses = mh.pipeline(stages(), {mesh = line, micros = 4}):train_step(samples(4), loss_of)

  for i, loss in ipairs(losses) do testing.assert_close(loss:item(), expected[i]) end
end

-- A mistake of a stage or the loss is found on the rank that has it: here on all, each with the whole pipeline.
function tests.test_N15_the_loss_is_one_number()
  local function step(loss, stage)
    return function() mh.pipeline({stage or nn.Linear(6, 3):double()},
        {mesh = alone, micros = 1}):train_step(samples(1), loss) end
  end
  local Odd = nn.Module:extend("Odd")
  function Odd:forward() return 3 end
  local Nothing = nn.Module:extend("Nothing")
  function Nothing:forward() end
  testing.assert_error(step(function(x) return x end), "the loss is not a single number\n  have  Double [2, 3]")
  testing.assert_error(step(function() end), "pipeline: the loss returns one number\n  have  0 results")
  testing.assert_error(step(function() return 3.0 end), "the loss gives tensors, result 1 is 3.0")
  testing.assert_error(step(function(x) return x:detach():sum() end), "the loss requires no gradient")
  testing.assert_error(step(loss_of, Odd()), "stage 0 gives tensors, result 1 is 3")
  testing.assert_error(step(loss_of, Nothing()), "stage 0, micro-batch 0: the stage gave no tensor")
end

function tests.test_its_schedule_is_printed()
  local pipe = mh.pipeline(seeded(mlp), {mesh = alone, micros = 2, stages = 2})
  testing.assert_equal(tostring(pipe), "Pipeline of 2 stages\nF0.0 F1.0 B1.0 F0.1 B0.0 F1.1 B1.1 B0.1\n")
  testing.assert_equal(#pipe.stages, 2)
  testing.assert_error(function() return pipe.stage end, "Pipeline: no field or method 'stage'; did you mean 'stages'?")
end

return tests
