-- SPDX-License-Identifier: Apache-2.0
-- N01-N10, N13-N20, N28: mh.parallelize on all ranks of a run, against the same model on one plain rank.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local classes = require "support.parallel_classes"
local runs = require "support.parallel_runs"
local nn, optim = mh.nn, mh.optim
local Mlp, ConvNet, Trained, Wide, Anew = classes.Mlp, classes.ConvNet, classes.Trained, classes.Wide, classes.Anew
local seeded, plain, config_of = runs.seeded, runs.plain, runs.config_of

local ranks = mh.world_size()
local kF64 = {dtype = "float64"}
local tests = {}

local function close(actual, expected, what)
  local done, problem = pcall(testing.assert_close, actual, expected)
  if not done then error(what .. ": " .. tostring(problem), 0) end
end

--- This unit's rows of `x`; units have different numbers of them.
local function rows_of_unit(x, unit, units)
  local first, count = 0, nil
  for u = 0, unit do
    first = first + (count or 0)
    count = u == units - 1 and x.shape[1] - first or x.shape[1] // units + (u == 0 and 1 or 0)
  end
  return x:narrow(0, first, count)
end

-- ---- Modules whose output is a prediction ---------------------------------------------------------------------------

--- Losses and, in the end, parameters and buffers of three steps; `labels` makes the labels of what the net is given.
--- The optimizer of the whole net is made without build_optimizer.
local function train(net, x, y, labels)
  local opt, seen = nil, {}
  if labels then
    opt = mh.build_optimizer(net, optim.AdamW, {lr = 0.05})
  else
    opt = optim.AdamW(net:parameters(), {lr = 0.05})
  end
  for step = 1, 3 do
    opt:zero_grad()
    local loss = mh.mse_loss(net(x), labels and labels(y) or y)
    loss:backward()
    opt:step()
    seen["loss " .. step] = plain(loss)
  end
  for name, tensor in net:state_dict() do seen[name] = plain(tensor):clone() end
  return seen
end

local kModels = {
  mlp = {make = Mlp, x = {7, 6}, y = {7, 9}},
  convnet = {make = ConvNet, x = {7, 2, 5, 4}, y = {7, 5, 4, 3}},
}

--- Ranks of a unit, for all ways to make whole units; on 8 ranks for some.
local function plan_sizes()
  local sizes = {}
  for size = 1, ranks do
    if ranks % size == 0 and (ranks < 8 or size == 2 or size == 4) then sizes[#sizes + 1] = size end
  end
  return sizes
end

local function check_trains(case, policy, config, options)
  mh.manual_seed(6)
  local x, y = mh.randn(case.x, kF64), mh.randn(case.y, kF64)
  local expected = train(seeded(case.make), x, y)
  local net = mh.parallelize(seeded(case.make), {x = x}, policy, config, options)
  local mesh, units = net.parallel.mesh, config.units
  local unit = mesh:coordinate("unit")

  local found = train(net, rows_of_unit(x, unit, units), rows_of_unit(y, unit, units), function(part)
    return mh.local_batch(part, mesh["unit"])
  end)

  testing.assert_all_close(found, expected)
  return net
end

for name, case in pairs(kModels) do
  tests["test_N02_N08_N10_N30_units_of_one_rank_" .. name] = function()
    for _, zero in ipairs {false, true} do check_trains(case, "dp", config_of(1, ranks, {use_zero = zero})) end
  end
  for _, policy in ipairs {"data", "tp"} do
    tests[("test_N02_N03_N08_N10_%s_%s"):format(policy, name)] = function()
      for _, size in ipairs(plan_sizes()) do
        for _, zero in ipairs {false, true} do
          local net = check_trains(case, policy, config_of(size, ranks, {use_zero = zero}))
          if policy == "tp" and size > 1 then
            local first = name == "mlp" and net.fc1 or net.conv1
            testing.assert_equal(first.weight.placements[2]:is_shard(0), true)
          end
        end
      end
    end
  end
end

--- Bytes of the rank that sends most in a step of a divided module.
local function sent_in_a_step(net, case)
  local mesh = net.parallel.mesh
  net:zero_grad()
  local x = mh.local_batch(mh.ones(case.x, kF64), mesh["unit"])
  local before = mh.comm_stats().bytes
  net(x):square():sum():backward()
  mh.finish_grad_sync(net)
  local bytes = mh.tensor({mh.comm_stats().bytes - before})
  return mh.from_local(bytes, mh.init_device_mesh(mh.device(), {ranks}, {"rank"}),
      {mh.Shard(0)}):full_tensor():max():item()
end

-- V10: the plan is found, the numbers are those of one rank, and every candidate is counted.
for name, case in pairs(kModels) do
  tests["test_V10_N08_autodist_" .. name] = function()
    for _, size in ipairs(plan_sizes()) do
      local net = check_trains(case, "autodist", config_of(size, ranks))
      local candidates, seen = net.parallel.report.candidates, {}
      for i, one in ipairs(candidates) do
        local what = one.sizes
        testing.assert_equal(what.pp * what.dp * what.domain * what.tp, size)
        testing.assert_equal(one.cost, one.macs + 10 * one.bytes)
        testing.assert_equal(i == 1 or one.cost >= candidates[i - 1].cost, true)
        seen[("%d %d %d %s"):format(what.dp, what.domain, what.tp, one.stored)] = one
      end
      testing.assert_equal(seen["1 1 " .. size .. " false"] ~= nil, true)
      testing.assert_equal(seen["1 " .. size .. " 1 false"] ~= nil, size == 1 or name == "convnet")
      testing.assert_equal(seen[size .. " 1 1 true"] ~= nil, size > 1)
      testing.assert_equal(candidates[1].bytes, sent_in_a_step(net, case))
    end
  end
end

-- Fields cut along their first spatial dim, and with samples, channels and parameters divided at once.
function tests.test_N09_N10_domains_and_all_at_once()
  local function placing(sizes, names, stored)
    return function()
      local inputs, parameter = {}, {}
      local function along(placement)
        local list = {}
        for i, name in ipairs(names) do list[i] = name == "tp" and placement or mh.Replicate() end
        return list
      end
      for _, name in ipairs(names) do
        if name ~= "tp" then inputs[name] = name == "dp" and 0 or 2 end
        if name == "tp" then
          parameter["conv1.weight"], parameter["conv1.bias"] = along(mh.Shard(0)), along(mh.Shard(0))
          parameter["conv2.weight"] = along(mh.Shard(1))
        end
      end
      return {mesh = {sizes, names}, inputs = inputs, parameter = parameter, stored = stored}
    end
  end
  local case = kModels.convnet
  check_trains(case, placing({ranks}, {"domain"}), config_of(ranks, ranks))
  if ranks % 2 == 0 then
    check_trains(case, placing({ranks // 2, 2}, {"domain", "tp"}), config_of(ranks, ranks))
    check_trains(case, placing({2}, {"domain"}), config_of(2, ranks, {use_zero = true}))
    check_trains(case, placing({2, ranks // 2}, {"dp", "domain"}, "dp"), config_of(ranks, ranks))
  end
  if ranks == 8 then
    local net = check_trains(case, placing({2, 2, 2}, {"dp", "domain", "tp"}, "dp"), config_of(8, 8))
    testing.assert_equal(net.conv1.weight.placements[4]:is_shard(0), true)
  end
end

-- ---- Modules that train ---------------------------------------------------------------------------------------------

local function samples_of(count)
  mh.manual_seed(6)
  local list = {}
  for i = 1, count do list[i] = {mh.randn({4 + i, 6}, kF64), target = mh.randn({4 + i, 3}, kF64)} end
  return list
end

--- Does what a plain loop over the samples does; `counts(i)` tells which count.
local function train_plainly(samples, counts, scale, class)
  local net = seeded(class)
  local opt, seen = optim.AdamW(net:parameters(), {lr = 0.05}), {}
  for step = 1, 3 do
    opt:zero_grad()
    for i, sample in ipairs(samples) do
      local loss = net(sample)
      if counts(i) then (loss * (scale or 1)):backward() end
      seen[("loss %d of %d"):format(i, step)] = counts(i) and loss:detach() or nil
    end
    opt:step()
  end
  local parameters = {}
  for name, tensor in net:state_dict() do parameters[name] = tensor end
  return seen, parameters
end

local function own_samples(samples, net)
  local mesh, list = net.parallel.mesh, {}
  local unit, units = mesh:coordinate("unit"), mesh:size("unit")
  for i, sample in ipairs(samples) do
    list[i] = {rows_of_unit(sample[1], unit, units), target = rows_of_unit(sample.target, unit, units)}
  end
  return list
end

local function check_steps(policy, config, dummies, class)
  class = class or Trained
  local samples = samples_of(config.pas_config.pipeline_nmicros or 3)
  local scale = dummies and 4 or nil
  local expected, parameters = train_plainly(samples, function(i) return not (dummies and dummies[i]) end, scale, class)
  local net = mh.parallelize(seeded(class), {sample = samples[1]}, policy, config)
  local opt, own = optim.AdamW(net:parameters(), {lr = 0.05}), own_samples(samples, net)

  for step = 1, 3 do
    local losses = net:train_step(own, dummies, scale and function(loss) return loss * scale end)
    -- N18: starts from zero
    if step == 1 then net:train_step(own, dummies, scale and function(loss) return loss * scale end) end
    opt:step()
    for i, loss in ipairs(losses) do
      local wanted = expected[("loss %d of %d"):format(i, step)]
      if wanted then close(plain(loss), wanted, policy .. ", loss") end
    end
  end

  for name, tensor in net:named_parameters() do close(plain(tensor), parameters[name], policy .. ", " .. name) end
  return net
end

local function end2end(plan, more)
  local fields = {use_end2end = true}
  for key, value in pairs(more or {}) do fields[key] = value end
  return config_of(plan, ranks, fields)
end

tests["test_N08_N17_N18_steps_of_micro_batches"] = function()
  check_steps("dp", end2end(1))
  check_steps("dp", end2end(1, {use_zero = true}))
  for _, size in ipairs(plan_sizes()) do
    check_steps("data", end2end(size))
    check_steps("tp", end2end(size))
  end
end

tests["test_N08_N17_N18_pipelines_and_N05_their_units"] = function()
  for _, size in ipairs(plan_sizes()) do
    if size > 1 and size <= 4 then
      check_steps("pp", end2end(size, {pas_config = {pipeline_nmicros = 3}}))
      check_steps("pp", end2end(size, {pas_config = {pipeline_nmicros = 4, pipeline_scheduler = "gpipe"},
          use_zero = true}))
    end
    if size % 2 == 0 then
      check_steps("hybrid", end2end(size, {pas_config = {pipeline_nstages = 2, pipeline_nmicros = 3}}))
    end
  end
  if ranks <= 4 then check_steps("pp", end2end(ranks, {pas_config = {pipeline_nmicros = 3}}), nil, Anew) end
end

-- V10, N08: pipelines among the candidates, with stages that are even in multiplications, and carried out when they are
-- cheapest.
function tests.test_V10_N08_N04_autodist_tries_pipelines()
  if ranks > 4 then return end
  local function found(more, per_byte)
    more.pas_config = {macs_per_byte = per_byte, pipeline_nmicros = 8}
    local net = mh.parallelize(seeded(Wide), {sample = samples_of(1)[1]}, "autodist", end2end(ranks, more))
    return net, net.parallel.report.candidates
  end
  local function with_stages(candidates, count)
    for _, one in ipairs(candidates) do
      if one.sizes.pp == count and one.sizes.dp * one.sizes.domain * one.sizes.tp * count == ranks then return one end
    end
  end
  -- Bytes that cost nothing: the rank with the least to multiply wins. Bytes that cost all: the fewest.
  local _, by_work = found({}, 1e-9)
  local cheap, by_bytes = found({}, 1e9)
  for i = 2, #by_work do
    testing.assert_equal(by_work[i].macs >= by_work[1].macs, true)
    testing.assert_equal(by_bytes[i].bytes >= by_bytes[1].bytes, true)
  end
  testing.assert_equal(by_bytes[1].sizes.pp > 1, true)
  testing.assert_equal(cheap.parallel.pipeline ~= nil, true)
  testing.assert_equal(ranks == 2 or by_work[1].macs < by_bytes[1].macs, true)
  local one = with_stages(by_bytes, 2)
  if ranks % 2 == 0 then testing.assert_equal(one.placed.stages, {2, 2}) end  -- 60 x (6 + 70) against 50 x (70 + 3)
  assert(tostring(cheap.parallel.report):find("pp " .. ranks))
  testing.assert_equal(with_stages(select(2, found({use_async_reducer = true}, 10)), ranks), nil)

  -- The numbers were reckoned, and a step sends as much.
  local alike = {}
  for i = 1, 8 do alike[i] = samples_of(1)[1] end
  local samples = own_samples(alike, cheap)
  local before = mh.comm_stats().bytes
  cheap:train_step(samples)
  local bytes = mh.tensor({mh.comm_stats().bytes - before})
  local most = mh.from_local(bytes, mh.init_device_mesh(mh.device(), {ranks}, {"rank"}),
      {mh.Shard(0)}):full_tensor():max():item() / 8
  testing.assert_equal(math.abs(most / by_bytes[1].bytes - 1) < 0.05, true)  -- losses and seeds are not reckoned
  local net = check_steps("autodist", end2end(ranks, {pas_config = {macs_per_byte = 1e9, pipeline_nmicros = 3}}), nil,
      Wide)
  testing.assert_equal(net.parallel.pipeline ~= nil, true)
end

-- The first micro-batch of a step gathers the parameters that zero keeps in blocks, and no other does.
function tests.test_N11_N45_parameters_are_gathered_once_a_step()
  local function sent_by_step(micros)
    local samples = samples_of(1)
    for i = 2, micros do samples[i] = samples[1] end
    local net = mh.parallelize(seeded(Wide), {sample = samples[1]}, "dp", end2end(1, {use_zero = true}))
    local gathered, own = 0, own_samples(samples, net)
    for _, parameter in ipairs(net:parameters()) do
      if parameter.placements[1]:is_stored() then
        gathered = gathered + 8 * parameter:to_local():numel() * (ranks - 1)
      end
    end
    local before = mh.comm_stats().by_kind.exchange.bytes
    net:train_step(own)
    return mh.comm_stats().by_kind.exchange.bytes - before, gathered
  end
  local first, gathered = sent_by_step(1)
  testing.assert_equal(gathered > 0, true)
  for micros = 2, 3 do testing.assert_equal(sent_by_step(micros), first + (micros - 1) * (first - gathered)) end
end

--- Returns the bytes and messages that opt:step() sends after a train_step.
local function sent_by_optimizer(policy, config, dummies)
  local samples = samples_of(3)
  local net = mh.parallelize(seeded(Trained), {sample = samples[1]}, policy, config)
  local opt = optim.SGD(net:parameters(), {lr = 0.05})
  net:train_step(own_samples(samples, net), dummies)
  local before = mh.comm_stats()
  opt:step()
  local after = mh.comm_stats()
  return {bytes = after.bytes - before.bytes, messages = after.messages - before.messages}
end

function tests.test_N36_N45_reducers_sum_during_backward_in_messages_of_a_size()
  for _, case in ipairs {{"dp", 1}, {"dp", 1, true}, {"data", ranks}, {"data", ranks, true}} do
    local function with(more)
      more.use_zero = case[3]
      return end2end(case[2], more)
    end
    check_steps(case[1], with {use_async_reducer = true})
    check_steps(case[1], with {use_async_reducer = true, reducer_bucket_cap_mb = 1e-4}, {false, false, true})
    local late, small = sent_by_optimizer(case[1], with {}),
        sent_by_optimizer(case[1], with {reducer_bucket_cap_mb = 1e-4})
    testing.assert_equal(late.bytes > 0, true)
    testing.assert_equal(small.messages > late.messages, true)
    local async = sent_by_optimizer(case[1], with {use_async_reducer = true}, {false, false, true})
    testing.assert_equal({case[1], case[3], async.bytes}, {case[1], case[3], 0})
  end
  testing.assert_error(function() end2end(1, {reducer_bucket_cap_mb = 0}) end,
      "reducer_bucket_cap_mb = 0, expected a number of megabytes above 0")
  testing.assert_error(function() mh.replicate(nn.Linear(2, 2), {mesh = mh.init_device_mesh(mh.device(), {ranks}),
      bucket_cap_mb = -1}) end, "bucket_cap_mb is a number of megabytes above 0, got -1")
  for _, more in ipairs {{use_async_reducer = true}, {reducer_bucket_cap_mb = 3}} do
    more.pas_config = {pipeline_nmicros = 2}
    if ranks <= 4 then
      testing.assert_error(function()
        mh.parallelize(seeded(Trained), {sample = samples_of(1)[1]}, "pp", end2end(ranks, more))
      end, "makes a pipeline, whose gradients have no reducer")
    end
  end
end

tests["test_N17_dummy_samples_and_scales"] = function()
  check_steps("dp", end2end(1), {false, true, false})
  if ranks <= 4 then check_steps("pp", end2end(ranks, {pas_config = {pipeline_nmicros = 3}}), {true, false, false}) end
end

function tests.test_N17_a_sample_may_be_a_dummy_in_one_unit_alone()
  local sample = samples_of(1)[1]
  sample[1][0] = 0 / 0  -- does no harm
  local config = end2end(1)
  local net = mh.parallelize(seeded(Trained), {sample = sample}, "dp", config)
  local good = samples_of(2)[2]
  local whole = seeded(Trained)
  local loss = whole(good)
  loss:backward()

  local losses = net:train_step({mh.rank() == 1 and good or sample}, {mh.rank() ~= 1})

  close(losses[1], loss:detach(), "loss")
  for name, tensor in net:named_parameters() do close(plain(tensor.grad), whole:get_parameter(name).grad, name) end
end

function tests.test_N19_inference_gives_a_list()
  local samples, whole = samples_of(2), seeded(Trained)
  local cases = {{"dp", end2end(1)}, {"tp", end2end(ranks)}}
  if ranks <= 4 then cases[3] = {"pp", end2end(ranks, {pas_config = {pipeline_nmicros = 2}})} end
  for _, case in ipairs(cases) do
    local net = mh.parallelize(seeded(Trained), {sample = samples[1]}, case[1], case[2])

    local results = net:infer_step(own_samples(samples, net))

    testing.assert_equal(#results, 2)
    for i, result in ipairs(results) do
      close(plain(result), whole(samples[i]):detach(), case[1])
      testing.assert_equal(result.requires_grad, false)
    end
    for _, parameter in ipairs(net:parameters()) do testing.assert_equal(parameter.grad, nil) end
  end
end

-- A loss with a parameter of the last stage, which its ranks alone have trained.
function tests.test_N19_inference_gives_the_losses_of_what_was_trained()
  local Weighed = nn.Module:extend("Weighed")
  Weighed.init, Weighed.stages, Weighed.forward = Trained.init, Trained.stages, Trained.forward
  function Weighed:loss(y, sample) return mh.mse_loss(y, sample.target) * self.fc4.bias:square():sum() end
  local cases = {{"dp", end2end(1)}, {"tp", end2end(ranks)}}
  if ranks <= 4 then cases[3] = {"pp", end2end(ranks, {pas_config = {pipeline_nmicros = 3}})} end
  if ranks % 4 == 0 then
    cases[#cases + 1] = {"hybrid", end2end(4, {pas_config = {pipeline_nstages = 2, pipeline_nmicros = 3}})}
  end
  for _, case in ipairs(cases) do
    local net, whole, samples = check_steps(case[1], case[2], nil, Weighed), seeded(Weighed), samples_of(3)
    local state = {}
    for name, tensor in net:state_dict() do state[name] = plain(tensor) end
    whole:load_state_dict(state)
    for i, result in ipairs(net:infer_step(own_samples(samples, net))) do
      close(plain(result), whole(samples[i]):detach(), case[1])
    end
  end
end

function tests.test_N13_inference_as_usual()
  local x, whole = mh.randn({7, 6}, kF64), seeded(Mlp):eval()
  local net = mh.parallelize(seeded(Mlp), {x = x}, "tp", config_of(ranks, ranks)):eval()

  local y = mh.inference_mode(function() return net(x) end)

  close(plain(y), mh.inference_mode(function() return whole(x) end), "output")
  testing.assert_equal(y.requires_grad, false)
end

-- ---- Constructors ---------------------------------------------------------------------------------------------------

function tests.test_N01_N28_classes_give_constructors_and_each_is_called_once()
  local x, calls = mh.randn({4, 6}, kF64), 0
  local config = config_of(ranks, ranks)
  local Wide = nn.Module:extend("Wide")
  function Wide:init(width)
    calls = calls + 1
    self.fc1, self.fc2 = nn.Linear(6, width, {dtype = "float64"}), nn.Linear(width, 5, {dtype = "float64"})
  end
  function Wide:forward(input) return self.fc2(self.fc1(input):relu()) end
  local make = mh.parallelize(Wide, {input = x}, "tp", config)
  testing.assert_equal(calls, 0)

  mh.manual_seed(5)
  local net = make(11)

  testing.assert_equal(calls, 1)
  mh.manual_seed(5)
  local whole = Wide(11)
  close(plain(net(x)), plain(whole(x)), "output")
  testing.assert_equal(net.fc1.weight.shape, {11, 6})

  mh.manual_seed(5)
  local other = mh.parallelize(Wide, {input = x}, "tp", config, {module_fn = function() return Wide(11) end})
  testing.assert_equal(calls, 3)
  close(plain(other(x)), plain(whole(x)), "output of module_fn")
end

return tests
