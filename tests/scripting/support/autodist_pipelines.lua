-- SPDX-License-Identifier: Apache-2.0
-- V10, X14: pipelines and micro-batches in plans of the policy "autodist" by times, on 2 and on 4 ranks.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local classes = require "support.parallel_classes"
local machine = require "support.planted_machine"
local runs = require "support.parallel_runs"
local nn = mh.nn
local seeded, plain, config_of = runs.seeded, runs.plain, runs.config_of
local Trained, Wide = classes.Trained, classes.Wide

local ranks = mh.world_size()
local kF64 = {dtype = "float64"}
local tests = {}

--- Gradients of Wide's parameters take 70 ms to sum, 3 kB of activations as many microseconds as bytes.
local function slow_network() return machine(1e9, 1e11, 1e6, 1e-6) end

--- `first`: the seed of the first one less 1, another in every unit.
local function samples_of(count, rows, first)
  local list = {}
  for i = 1, count do
    local seed = (first or 0) + i
    list[i] = {runs.random(seed, {rows, 6}), target = runs.random(50 + seed, {rows, 3})}
  end
  return list
end

local function end2end(options, more)
  local fields = {use_end2end = true, pas_config = options}
  for key, value in pairs(more or {}) do fields[key] = value end
  return config_of(ranks, ranks, fields)
end

local function planned(class, sample, options, more)
  return mh.parallelize(seeded(class), {sample = sample}, "autodist", end2end(options, more), {load_module = false})
end

--- Losses and gradients of the same micro-batches one after the other on the plain module.
local function plainly(class, samples)
  local net, seen = seeded(class), {}
  for i, sample in ipairs(samples) do
    local loss = net(sample)
    loss:backward()
    seen["loss " .. i] = loss:detach()
  end
  for name, tensor in net:named_parameters() do seen[name] = tensor.grad end
  return seen
end

--- The same of a step of a divided module; of a pipeline, gradients of this rank's stages.
local function step_of(net, samples, expected)
  local seen, wanted = {}, {}
  for i, loss in ipairs(net:train_step(samples)) do seen["loss " .. i] = plain(loss) end
  for name, tensor in net:named_parameters() do seen[name] = plain(tensor.grad) end
  for name in pairs(seen) do wanted[name] = expected[name] end
  return seen, wanted
end

local function with_stages(report, count, recompute)
  for _, one in ipairs(report.candidates) do
    if one.sizes.pp == count and (recompute == nil or one.recompute == recompute) then return one end
  end
end

-- ---- Plans ----------------------------------------------------------------------------------------------------------

function tests.test_V10_a_pipeline_is_found_and_carried_out()
  local of, samples = slow_network(), samples_of(4, 4)
  local before = seeded(Wide)
  local net = seeded(Wide)

  mh.parallelize(net, {sample = samples[1]}, "autodist", end2end{machine = of, pipeline_nmicros = 4})

  local first = net.parallel.report.candidates[1]
  testing.assert_equal({first.sizes.pp > 1, net.parallel.pipeline ~= nil}, {true, true})
  testing.assert_equal(#net.parallel.plan.stages, first.sizes.pp)
  for _, one in ipairs(net.parallel.report.candidates) do
    testing.assert_equal(one.bound.step <= (one.seconds or one.bound.step) * (1 + 1e-9), true)
  end
  for name, tensor in net:state_dict() do testing.assert_equal(plain(tensor), before:state_dict()[name]) end
  testing.assert_all_close(step_of(net, samples, plainly(Wide, samples)))
end

-- Work counts alone: data ranks have no wait, and their steps are of as many micro-batches.
function tests.test_V10_micro_batches_are_accumulated_without_stages()
  local of, samples = machine(1e6, 1e12, 1e12, 0), samples_of(3, 12)
  local net = seeded(Trained)

  mh.parallelize(net, {sample = samples[1]}, "autodist", end2end{machine = of, pipeline_nmicros = 3, most_tensor = 1})

  local first = net.parallel.report.candidates[1]
  testing.assert_equal({first.sizes.pp, first.sizes.dp}, {1, ranks})
  testing.assert_all_close(step_of(net, samples, plainly(Trained, samples)))
  local function seconds(micros)
    local _, report = planned(Trained, samples[1], {machine = of, pipeline_nmicros = micros, most_tensor = 1})
    return report.candidates[1].seconds, with_stages(report, 2).seconds
  end
  local one, staged_one = seconds(1)
  local eight, staged_eight = seconds(8)
  -- The wait of two stages for each other falls with the number of micro-batches.
  assert(eight > 7.5 * one and eight < 8.0 * one * (1 + 1e-9), ("%g %g"):format(one, eight))
  assert(staged_eight / eight < 0.8 * staged_one / one, ("%g %g"):format(staged_one, staged_eight))
end

function tests.test_V10_stages_that_recompute_where_memory_is_short()
  local Deep = nn.Module:extend("Deep")
  function Deep:init()
    for i = 1, 4 do
      local layers = {nn.Linear(6, 60), nn.GELU(), nn.LayerNorm(60), nn.Tanh(), nn.Linear(60, 6)}
      self["part" .. i] = nn.Sequential(table.unpack(layers))
    end
    self.last = nn.Linear(6, 3)
  end
  function Deep:stages() return {self.part1, self.part2, self.part3, nn.Sequential(self.part4, self.last)} end
  Deep.loss = Trained.loss
  function Deep:forward(sample)
    local y = sample[1]
    for _, stage in ipairs(self:stages()) do y = stage(y) end
    return self:loss(y, sample)
  end
  local of, sample = slow_network(), {mh.zeros({20000, 6}, kF64), target = mh.zeros({20000, 3}, kF64)}
  local options = {machine = of, pipeline_nmicros = 2, most_data = 1, most_tensor = 1, pipeline_scheduler = "gpipe"}
  local _, free = planned(Deep, sample, options)
  local kept = with_stages(free, ranks, false)
  options.memory_limit = kept.memory * 5 // 6

  local placed, report = planned(Deep, sample, options)

  testing.assert_equal(placed.recompute, {{"part1"}, {"part2"}, {"part3"}, {"part4"}})
  testing.assert_equal({#placed.stages, with_stages(report, ranks, false).fits}, {ranks, false})
  local samples = samples_of(2, 5)
  local net = mh.parallelize(seeded(Deep), {sample = samples[1]}, function() return placed end,
    end2end{pipeline_nmicros = 2, pipeline_scheduler = "gpipe"})
  testing.assert_all_close(step_of(net, samples, plainly(Deep, samples)))
end

-- Costs are equal whether the norm, which multiplies nothing, goes with the first or with the last one.
function tests.test_V10_stages_without_parameters_join_others()
  local Few = nn.Module:extend("Few")
  function Few:init() self.first, self.norm, self.act = nn.Linear(6, 3), nn.LayerNorm(3), nn.Tanh() end
  function Few:stages() return {self.first, self.norm, self.act} end
  Few.loss = Trained.loss
  function Few:forward(sample) return self:loss(self.act(self.norm(self.first(sample[1]))), sample) end

  local _, report = planned(Few, samples_of(1, 8)[1], {machine = slow_network(), pipeline_nmicros = 2})

  testing.assert_equal({with_stages(report, 2).placed.stages, with_stages(report, 4)}, {{1, 2}, nil})
end

-- ---- Bytes of steps -------------------------------------------------------------------------------------------------

--- The largest number of all ranks.
local function largest(number)
  local mesh = runs.row()
  return mh.from_local(mh.tensor({number}, kF64):to(mh.device()), mesh, {mh.Shard(0)}):full_tensor():max():item()
end

--- Its second result has a graph, which train_step leaves alone.
local Both = nn.Module:extend("Both")
function Both:init() self.first, self.second = nn.Linear(6, 40), nn.Linear(40, 3) end
function Both:forward(sample)
  local y = self.second(self.first(sample[1]))
  return mh.mse_loss(y, sample.target), y
end

--- The most bytes that a rank sends in a step of train_step, as a forecast counts them and as they are sent. `options`:
--- of a search that finds one division. The samples are plain.
local function forecast_and_sent(class, samples, options)
  options.machine, options.pipeline_nmicros, options.most_tensor = slow_network(), #samples, 1
  local _, report = planned(class, samples[1], options)
  local first = report.candidates[1]
  local net = mh.parallelize(seeded(class), {sample = samples[1]}, function() return first.placed end,
    end2end{pipeline_nmicros = #samples})
  local optimizer, sent = mh.optim.AdamW(net:parameters(), {lr = 1e-3}), nil
  for _ = 1, 3 do
    local before = mh.comm_stats().bytes
    net:train_step(samples)
    optimizer:step()
    sent = mh.comm_stats().bytes - before
  end
  return first, largest(sent)
end

function tests.test_V10_steps_without_stages_are_those_of_train_step()
  for _, micros in ipairs {1, 3} do
    local first, sent = forecast_and_sent(Both, samples_of(micros, 4 * ranks), {})
    testing.assert_equal({first.sizes.dp, first.stored, micros, sent}, {ranks, false, micros, first.bytes})
  end
end

function tests.test_V10_steps_of_stages_are_those_of_train_step()
  local first, sent = forecast_and_sent(Trained, samples_of(2, 4), {most_data = 1})
  testing.assert_equal({first.sizes.pp, sent}, {ranks, first.bytes})
end

-- ---- The module afterwards ------------------------------------------------------------------------------------------

--- Its stages are in wrappers that it keeps, but not as modules of its own; a norm has statistics.
local Kept = nn.Module:extend("Kept")
function Kept:init()
  self.a = nn.Linear(6, 300)
  self.norm = nn.BatchNorm1d(300)
  self.b = nn.Linear(300, 3)
  self.kept = {first = nn.Sequential(self.a, self.norm), second = self.b}
end
function Kept:stages() return {self.kept.first, self.kept.second} end
Kept.loss = Trained.loss
function Kept:forward(sample) return mh.mse_loss(self.b(self.kept.first(sample[1])), sample.target) end

local kTables = {"_parameters", "_buffers", "_modules", "_pre_hooks", "_hooks"}

--- All that a module and those below it have: fields, tensors and their values, hooks.
local function everything_of(net)
  local seen, modules = {}, {net.kept.first}
  for _, one in net:named_modules() do modules[#modules + 1] = one end
  for i, one in ipairs(modules) do
    for key, value in pairs(one) do seen[i .. " " .. tostring(key)] = value end
    for _, name in ipairs(kTables) do
      for key, value in pairs(rawget(one, name)) do
        seen[("%d %s %s"):format(i, name, key)] = value
        if mh.is_tensor(value) then seen[("%d value of %s"):format(i, key)] = value:detach():clone() end
      end
    end
  end
  return seen
end

local function check_unchanged(net, before)
  local after = everything_of(net)
  for key in pairs(after) do testing.assert_equal({key, before[key] ~= nil}, {key, true}) end
  for key, value in pairs(before) do
    local same = rawequal(after[key], value)
    if key:find("value of", 1, true) then same = mh.equal(after[key], value) end
    testing.assert_equal({key, same}, {key, true})
  end
end

function tests.test_V10_pipelines_are_measured_and_leave_the_module_as_it_was()
  local net, samples = seeded(Kept), samples_of(2, 4)
  local before = everything_of(net)
  local function search(more)
    local options = {machine = slow_network(), pipeline_nmicros = 2, measure = 2, most_data = 1, most_tensor = 1}
    for key, value in pairs(more or {}) do options[key] = value end
    return mh.parallelize(net, {sample = samples[1]}, "autodist",
      config_of(2, ranks, {use_end2end = true, pas_config = options}), {load_module = false})
  end

  net.loss = function() error("no loss here") end
  testing.assert_error(search, "no loss here")
  net.loss = nil
  check_unchanged(net, before)
  local placed, report = search{measure = ranks == 2 and 2 or 0}

  testing.assert_equal({report.candidates[1].measured ~= nil, placed.stages}, {ranks == 2, {1, 1}})
  check_unchanged(net, before)
  testing.assert_all_close({loss = net(samples[1]):detach()}, {loss = seeded(Kept)(samples[1]):detach()})
  net = seeded(Kept)
  search()
  mh.parallelize(net, {sample = samples[1]}, function() return placed end,
    config_of(2, ranks, {use_end2end = true, pas_config = {pipeline_nmicros = 2}}))
  testing.assert_equal(#net:train_step(samples_of(2, 4, 100 * (mh.rank() // 2))), 2)
end

-- ---- Mistakes -------------------------------------------------------------------------------------------------------

function tests.test_V10_mistakes_are_one_error()
  local of, sample = slow_network(), samples_of(1, 4)[1]
  local function try(options, more, class)
    options.machine = of
    return function() planned(class or Wide, sample, options, more) end
  end
  local function refused(part, fn) testing.assert_error(fn, part) end
  refused("pipeline_nmicros with machine is for modules whose forward takes a sample and gives the loss",
    try({pipeline_nmicros = 2}, {use_end2end = false}))
  refused("pipeline_nmicros = 2.5, expected a number of micro-batches", try{pipeline_nmicros = 2.5})
  refused("pipeline_scheduler with machine needs the number of micro-batches", try{pipeline_scheduler = "gpipe"})
  refused("most_stages with machine needs the number of micro-batches", try{most_stages = 2})
  refused("unknown pipeline_scheduler 'gpip'", try{pipeline_nmicros = 2, pipeline_scheduler = "gpip"})
  local Lossless = nn.Module:extend("Lossless")
  Lossless.init, Lossless.stages = Wide.init, Wide.stages
  function Lossless:forward(sample) return self.fc4(self.fc3(self.fc2(self.fc1(sample[1])))):square():mean() end
  refused("a pipeline needs to know the loss", try({pipeline_nmicros = 2, most_stages = 2}, nil, Lossless))
  try({pipeline_nmicros = 2, most_stages = 1}, nil, Lossless)()
  try({pipeline_nmicros = 2}, {use_async_reducer = true}, Lossless)()
end

-- With stages() alone, or with several arguments, they are trained, but in no pipeline.
function tests.test_V10_modules_that_cannot_be_pipelines_are_searched_without()
  local Lossless, Several = nn.Module:extend("Lossless"), nn.Module:extend("Several")
  for _, class in ipairs {Lossless, Several} do class.init, class.stages = Wide.init, Wide.stages end
  function Lossless:forward(sample) return self.fc4(self.fc3(self.fc2(self.fc1(sample[1])))):square():mean() end
  function Several:forward(x, y) return Wide.forward(self, {x, target = y}) end
  Several.loss = Wide.loss
  local sample, options = samples_of(1, 4)[1], {machine = slow_network(), pipeline_nmicros = 2}
  local dummies = {{sample = sample}, {x = sample[1], y = sample.target}}
  for i, class in ipairs {Lossless, Several} do
    local _, report = mh.parallelize(seeded(class), dummies[i], "autodist", end2end(options), {load_module = false})
    for _, one in ipairs(report.candidates) do testing.assert_equal(one.sizes.pp, 1) end
  end
end

return tests
