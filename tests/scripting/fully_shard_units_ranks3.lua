-- SPDX-License-Identifier: Apache-2.0
-- What units of fully_shard gather and when: the numbers are those of replicate, bit by bit, in all three settings.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local units = require "support.sharded_units"
local nn = mh.nn

local tests = {}
local kF64 = {dtype = "float64"}
local ranks = mh.world_size()
local mesh, kSettings = units.mesh, units.settings
local new, replicated, mine, whole, train = units.new, units.replicated, units.mine, units.whole, units.train
local gradients, messages_of, halves, kUnits = units.gradients, units.messages_of, units.halves, units.count

-- ---- Equal numbers --------------------------------------------------------------------------------------------------

local ways = {
  plain = false,
  two_forwards = function(net)
    local a, b = net(mine(3)), net(mine(4))
    local y = a * b
    y:sum():backward()
  end,
  functional = function(net)
    local h = mh.linear(mine(5), net.embed.weight)
    local y = net(mine(5)):sum() + net.blocks[1].fc1(h):square():sum() + mh.linear(h, net.blocks[0].fc1.weight):sum()
    y:backward()
  end,
  second_derivative = function(net)
    local y = net(mine(6)):sin():sum()
    local first = mh.grad(y, net.blocks[1].fc1.weight, {create_graph = true})
    first:square():sum():backward()
  end,
  recomputed = function(net)
    local h = net.embed(mine(7))
    for i = 0, 2 do h = mh.checkpoint(function(value) return net.blocks[i](value) end, h) end
    net.head(h):square():sum():backward()
  end,
  called_twice = function(net)
    net.again = true
    net(mine(8)):square():mean():backward()
    net.again = false
  end,
  order_changes = function(net)
    local h = net.embed(mine(9))
    net.turn = net.turn + 1
    for i = 0, 2 do h = net.blocks[(i + net.turn) % 3](h) end
    net.head(h):square():mean():backward()
  end,
  micro_batches = function(net)
    for micro = 1, 3 do
      net:set_requires_gradient_sync(micro == 3)
      net(mine(micro)):square():mean():backward()
    end
  end,
}

for name, passes in pairs(ways) do
  tests["test_V15_units_and_copies_are_equal_" .. name] = function()
    local expected = train(replicated(), passes or nil)
    for _, setting in ipairs(kSettings) do
      for prefetch = 0, 2 do
        local given = {prefetch = prefetch}
        for key, value in pairs(setting) do given[key] = value end
        testing.assert_equal(train(new("fully_shard", given), passes or nil), expected)  -- bit by bit
      end
    end
  end
end

-- Some of LibTorch's optimizers write through another tensor that has the same memory.
function tests.test_V15_every_optimizer_is_seen_to_write()
  for _, optimizer in ipairs {"Adam", "SGD", "RMSprop", "Adagrad"} do
    testing.assert_equal(train(new("fully_shard", kSettings[3]), nil, optimizer), train(replicated(), nil, optimizer))
  end
end

function tests.test_V15_micro_batches_that_are_summed_one_by_one()
  local function passes(net)
    for micro = 1, 3 do net(mine(micro)):square():mean():backward() end
  end
  local expected = train(replicated(), passes)
  testing.assert_all_close(train(new("fully_shard", kSettings[1]), passes), expected)
  testing.assert_equal(train(new("fully_shard", kSettings[3]), passes), expected)  -- sums wait for the optimizer
  local net = new("fully_shard", kSettings[1])
  passes(net)
  testing.assert_equal(net.head.weight.grad.placements, net.head.weight.placements)
  net = new("fully_shard", kSettings[3])
  passes(net)
  testing.assert_equal(net.head.weight.grad.placements[1]:is_partial(), true)
end

-- ---- Messages -------------------------------------------------------------------------------------------------------


function tests.test_V15_N32_a_unit_is_one_message_for_each_pair_of_ranks()
  -- Per unit: forward, backward and the sum of gradients, or less.
  local again = {3, 2, 0}
  for i, expected in ipairs {{1, 2}, {1, 1}, {1, 0}} do
    for prefetch = 0, 2 do
      local given = {prefetch = prefetch}
      for key, value in pairs(kSettings[i]) do given[key] = value end
      local net = new("fully_shard", given, false)
      local opt = mh.optim.SGD(net:parameters(), {lr = 0.1})
      for _ = 1, 2 do  -- the second step has the order
        opt:zero_grad()
        local x, loss = mine(), nil
        testing.assert_equal(messages_of(function() loss = net(x):square():mean() end),
            expected[1] * kUnits * (ranks - 1))
        testing.assert_equal(messages_of(function() loss:backward() end), expected[2] * kUnits * (ranks - 1))
        -- Sums of an earlier pass are put aside, not sent again.
        testing.assert_equal(messages_of(function() net(x):square():mean():backward() end),
            again[i] * kUnits * (ranks - 1))
        opt:step()
      end
    end
  end
end

-- A segment that runs again gathers for its backward, too.
function tests.test_V15_segments_are_gathered_as_often_as_other_units()
  for i, backward in ipairs {2, 1} do
    local net = new("fully_shard", kSettings[i], false)
    net.segments = true
    for _ = 1, 2 do  -- the second pass has the order
      net:zero_grad()
      local y = net(mine())
      testing.assert_equal(messages_of(function() y:square():mean():backward() end), backward * kUnits * (ranks - 1))
    end
  end
end

--- Two layers; `reached(way, width)` is called while the unit's forward and backward are under way.
local Wide = nn.Module:extend("Wide")
function Wide:init(width, reached)
  self.width, self.reached, self.first, self.second = width, reached, nn.Linear(4, width), nn.Linear(width, 4)
end
function Wide:forward(x)
  local h = self.first(x)
  self.reached("forward", self.width)
  h:register_hook(function() self.reached("backward", self.width) end)
  return self.second(h)
end

function tests.test_V15_a_forward_that_failed_is_not_under_way_for_other_modules()
  local failed, net = new("fully_shard", kSettings[1]), new("fully_shard", kSettings[1], false)
  failed.blocks[1]:register_forward_hook(function() error("stop here") end)
  testing.assert_error(function() failed(mine()) end, "stop here")
  local function step() return messages_of(function() net(mine()):square():mean():backward() end) end
  net:zero_grad()
  local first = step()
  net:zero_grad()
  testing.assert_equal({first, step()}, {3 * kUnits * (ranks - 1), 3 * kUnits * (ranks - 1)})
end

function tests.test_V15_the_units_that_come_next_are_on_their_way_while_one_computes()
  local kMade, kCalled = {9, 15, 6}, {15, 6, 9}  -- widths, which tell units apart by their bytes
  for prefetch = 0, 2 do
    local seen, start
    local function sent() return mh.comm_stats().by_kind.exchange.bytes end
    local function reached(way, width) seen[#seen + 1] = ("%s %d: %d"):format(way, width, sent() - start) end
    local net, made, gathered, summed = nn.Sequential(), {}, {}, {}
    for _, width in ipairs(kMade) do
      made[width] = mh.fully_shard(Wide(width, reached):double(), {mesh = mesh, min_numel = 1, prefetch = prefetch})
      net:append(made[width])
      local own, all = 0, 0
      for _, p in ipairs(made[width]:parameters()) do own, all = own + p:to_local():numel(), all + p:numel() end
      gathered[width], summed[width] = 8 * own * (ranks - 1), 8 * (all - own)
    end
    function net:forward(x)
      for _, width in ipairs(kCalled) do x = made[width](x) end
      return x
    end
    mh.fully_shard(net, {mesh = mesh, prefetch = prefetch})
    --- Bytes sent by the time that the unit at `place` computes: its own and the next ones', and the sums of those
    --- before.
    local function expected(way, order, ahead, place)
      local bytes = 0
      for i = 1, math.min(#order, place + ahead) do bytes = bytes + gathered[order[i]] end
      for i = 1, way == "backward" and place - 1 or 0 do bytes = bytes + summed[order[i]] end
      return ("%s %d: %d"):format(way, order[place], bytes)
    end
    for step = 1, 3 do
      local ahead, wanted, back = step == 1 and 0 or prefetch, {}, {kCalled[3], kCalled[2], kCalled[1]}
      seen, start = {}, sent()
      local y = net(mine())
      start = sent()
      y:square():mean():backward()
      for place = 1, 3 do
        wanted[place], wanted[3 + place] = expected("forward", kCalled, ahead, place),
            expected("backward", back, ahead, place)
      end
      testing.assert_equal(seen, wanted)
      net:zero_grad()
    end
  end
end

function tests.test_V15_kept_for_micro_batches_until_the_optimizer_writes()
  local net = new("fully_shard", kSettings[3], false)
  local opt = mh.optim.SGD(net:parameters(), {lr = 0.1})
  local x = mine()
  local function bytes_of_passes(count)
    local before = mh.comm_stats().bytes
    opt:zero_grad()
    for _ = 1, count do net(x):square():mean():backward() end
    opt:step()
    return mh.comm_stats().bytes - before
  end
  bytes_of_passes(1)
  local one, four = bytes_of_passes(1), bytes_of_passes(4)
  testing.assert_equal(four, one)
  testing.assert_equal(messages_of(function() net(x) end), kUnits * (ranks - 1))
  testing.assert_equal(messages_of(function() net(x) end), 0)
  mh.no_grad(function() net.head.weight:add_(1) end)
  testing.assert_equal(messages_of(function() net(x) end), ranks - 1)  -- of one unit
end

function tests.test_V15_written_parameters_are_gathered_again()
  local net, copies = new("fully_shard", kSettings[3]), replicated()
  local x = mine()
  for _, model in ipairs {net, copies} do
    model(x)
    mh.no_grad(function()
      model.head.weight:mul_(2)
      model.embed.weight:t():narrow(0, 1, 2):add_(1)
      model.blocks[1].fc1.weight:copy_(mh.ones({10, 6}, kF64))
    end)
  end
  testing.assert_equal(whole(net(x)), whole(copies(x)))
  local state = {}
  for name, value in pairs(copies:state_dict()) do
    state[name] = value:is_shard_tensor() and value:full_tensor() * 2 or value * 2
  end
  net:load_state_dict(state)
  copies:load_state_dict(state)
  testing.assert_equal(whole(net(x)), whole(copies(x)))
  local path = require("support.checkpoint_layouts").folder("units")
  mh.checkpoint.save(path, {model = copies})
  mh.no_grad(function() net.head.weight:zero_() end)
  net(x)
  mh.checkpoint.load(path, {model = net})
  testing.assert_equal(whole(net(x)), whole(copies(x)))
end

function tests.test_V15_blocks_written_behind_its_back_are_an_error()
  local net = new("fully_shard", kSettings[3])
  local x = mine()
  net(x)
  mh.no_grad(function() net.head.weight:to_local():add_(1) end)
  testing.assert_error(function() net(x) end, "block of a parameter was written behind the ShardTensor's back")
end

function tests.test_V15_a_forward_that_fails_leaves_no_trace()
  local net, copies = new("fully_shard", kSettings[1]), replicated()
  local function passes(model)
    testing.assert_error(function() model(mh.local_batch(mh.zeros({1, 5, 3}, kF64), mesh)) end, "3 features")
    local hook = model.blocks[1]:register_forward_hook(function() error("stop here") end)
    testing.assert_error(function() model(mine()) end, "stop here")
    hook:remove()
    model(mine()):square():mean():backward()
  end
  testing.assert_equal(train(net, passes), train(copies, passes))
end

-- ---- Types ----------------------------------------------------------------------------------------------------------

function tests.test_V15_parameters_travel_in_half_precision()
  local x = mine():float()
  local function passes(net)
    local first, second = net(x), net(x * 2)
    local y = first:float() * second:float()
    y:sum():backward()
    testing.assert_equal(net.first.weight.grad.dtype, "float32")
    testing.assert_equal(net.first.weight.dtype, "float32")
  end
  local whole_net = halves {min_numel = 10000}  -- copies, cast in the same way
  local expected = train(whole_net, passes)
  for _, setting in ipairs(kSettings) do
    testing.assert_equal(train(halves(setting), passes), expected)
  end

  local net = halves(kSettings[1])
  local messages = messages_of(function() net(x):float():square():mean():backward() end)
  testing.assert_equal(messages, 3 * 3 * (ranks - 1))  -- three units
  local before, elements = mh.comm_stats().bytes, 0
  local y = net(x)
  for _, p in ipairs(net:parameters()) do elements = elements + p:to_local():numel() end
  testing.assert_equal(mh.comm_stats().bytes - before, 2 * elements * (ranks - 1))  -- two bytes each

  net = halves(kSettings[3])
  for micro = 1, 2 do  -- kept for the casts of the next forward, too
    testing.assert_equal(messages_of(function() y = net(x) end), micro == 1 and 3 * (ranks - 1) or 0)
    testing.assert_equal(messages_of(function() y:float():square():mean():backward() end), 0)
  end
  testing.assert_error(function() net(mine():narrow(2, 0, 3):float()) end, "3 features")
  testing.assert_equal(net.first.weight.dtype, "float32")
end

-- ---- What stands around units ---------------------------------------------------------------------------------------

-- N36: parameters of an outer module that are plain, the same on every rank.
function tests.test_N36_plain_parameters_outside_of_units()
  local function outer(inner, batch)
    local net = nn.Sequential(nn.Linear(4, 4):double(), nn.Linear(4, 6):double(), nn.Linear(6, 2):double())
    mh.manual_seed(5)
    for _, p in ipairs(net:parameters()) do
      p:requires_grad_(false):copy_(mh.randn(p.shape, kF64)):requires_grad_(true)
    end
    inner(net[1])
    return train(net, function(model) model(batch):square():mean():backward() end)
  end
  local expected = outer(function() end, mine():full_tensor())
  for _, op in ipairs {"replicate", "fully_shard"} do
    local function place(module) mh[op](module, {mesh = mesh, min_numel = op == "fully_shard" and 1 or nil}) end
    testing.assert_all_close(outer(place, mine()), expected)
    testing.assert_all_close(outer(place, mine():to_local()), expected)
  end
end

-- A loop written for one rank of several, where all have as many samples.
function tests.test_V15_results_of_this_rank_alone()
  mh.manual_seed(6)
  local x = mh.randn({2 * ranks, 5, 4}, kF64)
  local own = x:narrow(0, 2 * mesh.rank, 2)
  local expected = train(replicated(), function(net) net(mh.local_batch(own, mesh)):square():mean():backward() end)
  for _, op in ipairs {"replicate", "fully_shard"} do
    local net = new(op, {output = "local"})
    testing.assert_equal(net(own):is_shard_tensor(), false)
    testing.assert_equal(net(own).shape, {2, 5, 2})
    testing.assert_all_close(train(net, function(model) model(own):square():mean():backward() end), expected)
  end
end

-- A head that is an ordinary module sees plain results, other ones on every rank.
function tests.test_N36_plain_heads_behind_results_of_this_rank_alone()
  mh.manual_seed(6)
  local x = mh.randn({2 * ranks, 5, 4}, kF64)
  local own = x:narrow(0, 2 * mesh.rank, 2)
  local function run(op, options, sum)
    local net = new(op, options)
    mh.manual_seed(7)
    local head, spare = nn.Linear(2, 3):double(), nn.Linear(2, 3):double()
    if not options.output then
      for _, module in ipairs {head, spare} do mh.replicate(module, {mesh = mesh}) end
    end
    local parameters = net:parameters()
    for _, module in ipairs {head, spare} do
      for _, p in ipairs(module:parameters()) do parameters[#parameters + 1] = p end
    end
    local mask = mh.full({2, 1, 1}, mesh.rank == 1 and 1 or 0, kF64)
    local opt, norms = mh.optim.AdamW(parameters, {lr = 0.05}), {}
    for step = 1, 3 do
      opt:zero_grad()
      local h, y = net(options.output and own or mh.local_batch(own, mesh)), nil
      if not options.output then
        y = head(h) + spare(h) * mh.local_batch(mask, mesh)
      elseif mesh.rank == 1 then
        y = head(h) + spare(h)
      else
        y = head(h)  -- the spare one has no gradient here
      end
      y:square():mean():backward()
      norms[step] = sum(opt, parameters)
      opt:step()
    end
    local seen = {norms = mh.stack(norms):detach()}
    for i, p in ipairs(parameters) do seen[i] = whole(p) end
    return seen
  end
  local ways = {
    step = function() return mh.zeros({}, kF64) end,
    clip_gnorm = function(opt) return opt:clip_gnorm(0.1) end,
    clip_grad_norm = function(_, parameters) return mh.clip_grad_norm(parameters, 0.1) end,
  }
  for _, sum in pairs(ways) do
    local expected = run("replicate", {}, sum)
    for _, op in ipairs {"replicate", "fully_shard"} do
      testing.assert_all_close(run(op, {output = "local"}, sum), expected)
    end
  end
end

-- ---- Mistakes -------------------------------------------------------------------------------------------------------

function tests.test_N30_an_optimizer_made_too_early_is_told()
  for _, op in ipairs {"fully_shard", "replicate"} do
    local net = nn.Linear(6, 9)
    local opt = mh.optim.SGD(net:parameters(), {lr = 0.1})
    mh[op](net, {mesh = mesh})
    net(mh.local_batch(mh.ones{4, 6})):sum():backward()
    testing.assert_error(function() opt:step() end,
        "is no longer the module's: fully_shard or replicate has put another in its place")
    mh.optim.SGD(net:parameters(), {lr = 0.1}):step()
  end
end

function tests.test_bad_options_are_named()
  local net = nn.Linear(2, 2)
  local function given(options)
    options.mesh = mesh
    return function() mh.fully_shard(net, options) end
  end
  testing.assert_error(given {reshard_after_forwards = true},
      "unknown option 'reshard_after_forwards'; did you mean 'reshard_after_forward' or 'reshard_after_backward'?")
  testing.assert_error(given {reshard_after_backward = 1}, "reshard_after_backward is true or false, got 1")
  testing.assert_error(given {prefetch = -1}, "prefetch is an integer, not negative, got -1")
  testing.assert_error(given {output = "plain"}, 'output is "shard" or "local", got plain')
  testing.assert_error(given {mp_policy = "bfloat16"}, "mp_policy is a table")
  testing.assert_error(given {mp_policy = {params_dtype = "bfloat16"}},
      "mp_policy: unknown option 'params_dtype'; did you mean 'param_dtype'?")
  testing.assert_error(function() mh.replicate(net, {mesh = mesh, prefetch = 1}) end,
      "replicate: unknown option 'prefetch'")
end

function tests.test_V15_a_tensor_that_is_given_twice_stays_one()
  local Pair = nn.Module:extend("Pair")
  function Pair:init() self.fc, self.same = nn.Linear(4, 4), false end
  function Pair:forward(x, pair)
    self.same = rawequal(x, pair.y)
    return self.fc(x) + pair.y
  end
  for _, policy in ipairs {{}, {param_dtype = "bfloat16"}} do
    local net = mh.fully_shard(Pair(), {mesh = mesh, mp_policy = policy})
    local x = mine():float()
    net(x, {y = x})
    testing.assert_equal(net.same, true)
  end
end

return tests
