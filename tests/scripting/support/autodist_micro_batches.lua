-- SPDX-License-Identifier: Apache-2.0
-- V10, X14: the number of micro-batches in plans of the policy "autodist" by times, and what use_zero stores, on 2 and
-- on 4 ranks.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local classes = require "support.parallel_classes"
local machine = require "support.planted_machine"
local own_path = require "support.own_path"
local runs = require "support.parallel_runs"
local nn = mh.nn
local seeded, plain, config_of = runs.seeded, runs.plain, runs.config_of
local Trained, Wide = classes.Trained, classes.Wide

local ranks = mh.world_size()
local tests = {}

local function sample_of(rows, seed)
  seed = seed or 1
  return {runs.random(seed, {rows, 6}), target = runs.random(50 + seed, {rows, 3})}
end

local function end2end(options, more)
  local fields = {use_end2end = true, pas_config = options}
  for key, value in pairs(more or {}) do fields[key] = value end
  return config_of(fields.plan_ngpus or ranks, ranks, fields)
end

local function planned(class, sample, options, more)
  return mh.parallelize(seeded(class), {sample = sample}, "autodist", end2end(options, more), {load_module = false})
end

--- The losses and gradients of a step of these micro-batches on the plain module, or on a divided one.
local function step_of(net, samples)
  local seen, losses = {}, nil
  if net:has("parallel") then
    losses = net:train_step(samples)
  else
    losses = {}
    for i, sample in ipairs(samples) do
      losses[i] = net(sample)
      losses[i]:backward()
    end
  end
  for i, loss in ipairs(losses) do seen["loss " .. i] = plain(loss) end
  for name, tensor in net:named_parameters() do seen[name] = plain(tensor.grad) end
  return seen
end

--- `expected`, without what this rank's stages do not have.
local function check(seen, expected)
  local wanted = {}
  for name in pairs(seen) do wanted[name] = expected[name] end
  testing.assert_all_close(seen, wanted)
end

-- ---- Micro-batches --------------------------------------------------------------------------------------------------

-- Gradients take long to sum, so that a pipeline is best, with as many micro-batches as there are.
function tests.test_V10_the_number_of_micro_batches_is_found_and_carried_out()
  local of, sample, folder = machine(1e8, 1e11, 1e7, 1e-6), sample_of(24), own_path("micro_batch_plans")
  for kept = 0, 1 do
    local net = seeded(Wide)
    mh.parallelize(net, {sample = sample}, "autodist", end2end{machine = of, micro_batches = {1, 2, 4}},
      {gen_savedir = folder})
    local plan = net.parallel.plan
    testing.assert_equal({plan.micro_batches, net.parallel.pipeline ~= nil, net.parallel.planned},
      {4, true, kept == 0})
    local samples = mh.split_samples(sample, plan.micro_batches)
    check(step_of(net, samples), step_of(seeded(Wide), samples))
  end
  local _, report = planned(Wide, sample, {machine = of, micro_batches = {1, 2, 4}})
  local numbers = {}
  for _, one in ipairs(report.candidates) do
    numbers[one.micro_batches] = true
    testing.assert_equal(one.bound.step <= (one.seconds or one.bound.step) * (1 + 1e-9), true)
  end
  testing.assert_equal(numbers, {true, true, nil, true})
  testing.assert_equal(tostring(report):find("micro-batches 4", 1, true) ~= nil, true)
end

-- Without stages too: one of four parts is there at a time, and the sum of its gradients is that of all.
function tests.test_V10_memory_that_is_short_takes_more_micro_batches()
  local of, sample = machine(1e9, 1e11, 1e11, 1e-5), sample_of(40000 * ranks)
  local options = {machine = of, micro_batches = {1, 4}, most_stages = 1, most_tensor = 1, recompute = false}
  local _, free = planned(Trained, sample, options)
  testing.assert_equal(free.candidates[1].micro_batches, 1)
  options.memory_limit = free.candidates[1].memory * 2 // 3
  local net = mh.parallelize(seeded(Trained), {sample = sample}, "autodist", end2end(options))
  local first = net.parallel.report.candidates[1]
  testing.assert_equal({net.parallel.plan.micro_batches, first.micro_batches, first.fits}, {4, 4, true})
  local samples = mh.split_samples(sample, 4)
  local optimizer = mh.optim.AdamW(net:parameters(), {lr = 1e-3})
  local seen = step_of(net, samples)
  check(seen, step_of(seeded(Trained), samples))
  optimizer:step()
  for i, micro in ipairs(samples) do
    samples[i] = {mh.local_batch(micro[1], net.parallel.mesh["unit"]),
                  target = mh.local_batch(micro.target, net.parallel.mesh["unit"])}
    for name, tensor in pairs(samples[i]) do
      samples[i][name] = tensor:redistribute{mh.Replicate(), mh.Shard(0)}
    end
  end
  collectgarbage()
  mh.memory{reset = true}
  local before = mh.memory().live
  net:train_step(samples)
  optimizer:step()
  -- The whole samples of this test are not in the plan, whose ranks have blocks of them.
  local held = mh.memory().peak - before
  assert(held <= options.memory_limit, ("%d bytes above those before a step, %d allowed"):format(held,
    options.memory_limit))
end

-- Lua has more memory of its own from one dry run to the next, and collects tensors by it.
function tests.test_V10_the_memory_of_a_division_is_the_same_in_all_searches()
  local of, sample = machine(1e9, 1e11, 1e11, 1e-5), sample_of(40000 * ranks)
  local options = {machine = of, micro_batches = {4}, most_stages = 1, most_tensor = 1, recompute = false}
  local function memory_of(report)
    for _, one in ipairs(report.candidates) do
      if not one.recompute and not one.stored then return one.memory end
    end
  end
  local _, alone = planned(Trained, sample, options)
  local held, Grows = {}, Trained:extend("Grows")
  function Grows:forward(sample)
    for _ = 1, mh.backend() == "fake" and 4000 or 0 do held[#held + 1] = {1} end
    return Trained.forward(self, sample)
  end
  local _, grown = planned(Grows, sample, options)
  testing.assert_equal(memory_of(grown), memory_of(alone))
end

-- A plan of a pipeline and one without: as many samples as micro-batches.
function tests.test_V10_errors_about_samples_name_split_samples()
  for _, stages in ipairs {1, ranks} do
    local options = {machine = machine(1e8, 1e11, 1e7, 1e-6), micro_batches = {4}, most_stages = stages}
    local sample = sample_of(24)
    local net = mh.parallelize(seeded(Wide), {sample = sample}, "autodist", end2end(options))
    testing.assert_equal(net.parallel.pipeline ~= nil, stages > 1)
    for _, wrong in ipairs {{mh.split_samples(sample, 2), "train_step: 2 samples for 4 micro-batches"},
                            {{target = sample.target}, "train_step: expected a list of samples"}} do
      local ok, message = pcall(net.train_step, net, wrong[1])
      local said = tostring(message)
      assert(not ok and said:find(wrong[2], 1, true), said)
      assert(said:find("mh.split_samples(sample, model.parallel.plan.micro_batches)", 1, true), said)
    end
  end
end

function tests.test_V10_samples_are_split_into_equal_parts()
  local mask = mh.constant(mh.ones{5})
  local sample = {mh.arange(0, 12):reshape{6, 2}, target = {y = mh.arange(0, 6)}, mask = mask, step = 3,
                  rate = mh.tensor(0.5)}
  local micros = mh.split_samples(sample, 3)
  testing.assert_equal(#micros, 3)
  testing.assert_equal(micros[2][1]:tolist(), {{4, 5}, {6, 7}})
  testing.assert_equal(micros[3].target.y:tolist(), {4, 5})
  testing.assert_equal({micros[1].mask:is_same(mask), micros[1].step, micros[2].rate:item()}, {true, 3, 0.5})
  testing.assert_equal(mh.split_samples(mh.ones{4}, 2)[2].shape, {2})
  testing.assert_error(function() mh.split_samples(sample, 4) end,
    "split_samples: 6 rows are not 4 equal parts\n  have  a tensor of {6")
  testing.assert_error(function() mh.split_samples(sample, 0) end, "parts = 0, expected a number of micro-batches")
  testing.assert_error(function() mh.split_samples("x", 2) end, "expected samples, a tensor or a table of tensors")
end

function tests.test_V10_mistakes_are_one_error()
  local of, sample = machine(1e9, 1e11, 1e6, 1e-6), sample_of(8)
  local function refused(part, options, more)
    options.machine = of
    testing.assert_error(function() planned(Wide, sample, options, more) end, part)
  end
  refused("micro_batches = 4, expected a list of numbers of micro-batches", {micro_batches = 4})
  refused("micro_batches = {}, expected a list", {micro_batches = {}})
  refused("micro_batches has 0, expected numbers of at least 1", {micro_batches = {1, 0}})
  refused("8 rows of the dummy are not 3 equal parts", {micro_batches = {1, 3}})
  refused("pipeline_nmicros and micro_batches both say how many micro-batches",
    {micro_batches = {2}, pipeline_nmicros = 2})
  refused("micro_batches with machine is for modules whose forward takes a sample", {micro_batches = {2}},
    {use_end2end = false})
  local function of_policy(count, more)
    return function()
      mh.parallelize(seeded(Wide), {sample = sample},
        function() return {mesh = {{ranks}, {"dp"}}, inputs = {dp = 0}, micro_batches = count} end, end2end({}, more))
    end
  end
  testing.assert_error(of_policy(1.5), "micro_batches = 1.5, expected a number of micro-batches")
  testing.assert_error(of_policy(2, {use_end2end = false}), "micro_batches = 2 is for modules whose forward")
end

-- ---- use_zero -------------------------------------------------------------------------------------------------------

local function mlp() return nn.Sequential(nn.Linear(32, 24 * 64), nn.GELU(), nn.Linear(24 * 64, 32)) end

--- The candidates of the search, and the peak of a rank's memory in a real step of the best one: the mean, since rank
--- threads may free what others have asked for.
local function with_zero(plan_ngpus, options)
  for _ = 1, 2 do collectgarbage() end
  local before = mh.memory().live
  local x = mh.full({8, 32}, 1.0 + mh.rank() // plan_ngpus, runs.kF64)
  options.machine, options.backend = machine(1e9, 1e11, 1e11, 1e-6), "threads"
  local net = mh.parallelize(seeded(mlp), {x = x}, "autodist",
    config_of(plan_ngpus, ranks, {use_zero = true, pas_config = options}))
  local optimizer = mh.optim.AdamW(net:parameters(), {lr = 1e-3})
  local function step()
    optimizer:zero_grad()
    net(x):square():sum():backward()
    optimizer:step()
  end
  for _ = 1, 2 do step() end
  for _ = 1, 2 do collectgarbage() end
  mh.memory{reset = true}
  step()
  local sum = 0
  for _, peak in ipairs(mh._files.of_all_ranks(tostring(mh.memory().peak - before))) do sum = sum + tonumber(peak) end
  return net.parallel.report.candidates, sum / ranks
end

local function check_memory(planned, measured)
  assert(math.abs(planned - measured) < 0.05 * measured, ("%d bytes planned, %g in a step"):format(planned, measured))
end

-- The only unit stores parameters over its data ranks, so that no division has copies of them.
function tests.test_V10_use_zero_stores_over_the_data_ranks_of_one_unit()
  local found, peak = with_zero(ranks, {most_tensor = 1})
  for _, one in ipairs(found) do testing.assert_equal(one.stored, one.sizes.dp > 1) end
  testing.assert_equal(#found >= 1, true)
  check_memory(found[1].memory, peak)
end

-- Units hold a block of each parameter and of its states: the dry run carries out what the run does.
function tests.test_V10_use_zero_stores_over_the_units()
  local found, peak = with_zero(ranks // 2, {})
  for _, one in ipairs(found) do testing.assert_equal(one.stored, false) end
  check_memory(found[1].memory, peak)
end

return tests
