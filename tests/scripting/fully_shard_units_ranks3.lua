-- SPDX-License-Identifier: Apache-2.0
-- What units of fully_shard gather and when: the numbers are those of replicate, bit by bit, in all three settings.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn = mh.nn

local tests = {}
local kF64 = {dtype = "float64"}
local ranks = mh.world_size()
local mesh = mh.init_device_mesh("cpu", {ranks}, {"dp"})
local kSettings = {
  {reshard_after_forward = true, reshard_after_backward = true},
  {reshard_after_forward = false, reshard_after_backward = true},
  {reshard_after_forward = false, reshard_after_backward = false},
}

-- ---- A model of units -----------------------------------------------------------------------------------------------

local Block = nn.Module:extend("Block")
function Block:init()
  self.norm, self.fc1, self.fc2 = nn.LayerNorm(6), nn.Linear(6, 10), nn.Linear(10, 6)
  self.unused, self.frozen = nn.Linear(2, 9), nn.Linear(6, 6)
  for _, p in ipairs(self.frozen:parameters()) do p:requires_grad_(false) end
end
function Block:forward(x) return self.frozen(x) + self.fc2(mh.gelu(self.fc1(self.norm(x)))) end

local Net = nn.Module:extend("Net")
function Net:init()
  self.embed, self.blocks, self.head = nn.Linear(4, 6), nn.ModuleList{Block(), Block(), Block()}, nn.Linear(6, 2)
  self.again, self.segments, self.turn = false, false, 0
end
function Net:forward(x)
  local h = self.embed(x)
  for i = 0, 2 do h = self.segments and mh.checkpoint(self.blocks[i], h) or self.blocks[i](h) end
  if self.again then h = self.blocks[0](h) end
  return self.head(h)
end

local function whole(tensor) return tensor:is_shard_tensor() and tensor:detach():full_tensor() or tensor:detach() end

local function new(op, options, shares)
  mh.manual_seed(1)
  local net = Net():double()
  if shares ~= false then net.blocks[2].fc1.weight = net.blocks[0].fc1.weight end  -- by two units
  local given = {mesh = mesh, min_numel = op == "fully_shard" and 1 or nil}
  for key, value in pairs(options) do given[key] = value end
  for i = 0, 2 do mh[op](net.blocks[i], given) end
  return mh[op](net, given)
end
local function replicated() return new("replicate", {}) end
--- This rank's samples: uneven, the last rank has none.
local function mine(seed)
  mh.manual_seed(seed or 2)
  local x = mh.randn({7, 5, 4}, kF64)
  local rows = ({[3] = {4, 3, 0}, [4] = {3, 1, 3, 0}})[ranks]
  local begin = 0
  for rank = 1, mesh.rank do begin = begin + rows[rank] end
  return mh.local_batch(x:narrow(0, begin, rows[mesh.rank + 1]), mesh)
end

local function gradients(net)
  local seen = {}
  for name, p in net:named_parameters() do seen[name] = p.grad and whole(p.grad) end
  return seen
end

--- Parameters after three steps, and the gradients of the first.
local function train(net, passes, optimizer)
  passes = passes or function(model) model(mine()):square():mean():backward() end
  local opt = mh.optim[optimizer or "AdamW"](net:parameters(), {lr = 0.05})
  local seen = {}
  for step = 1, 3 do
    opt:zero_grad()
    passes(net, opt)
    opt:sync_shard_grad()
    if step == 1 then seen.gradients = gradients(net) end
    opt:step()
  end
  for name, p in net:named_parameters() do seen[name] = whole(p) end
  return seen
end

local function messages_of(fn)
  local before = mh.comm_stats().by_kind.exchange.messages
  fn()
  return mh.comm_stats().by_kind.exchange.messages - before
end

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

local kUnits = 4  -- three blocks and what stands around them

function tests.test_V15_N32_a_unit_is_one_message_for_each_pair_of_ranks()
  -- Per unit: forward, backward and the sum of gradients, or less.
  local again = {3, 2, 0}
  for i, expected in ipairs {{1, 2}, {1, 1}, {1, 0}} do
    for prefetch = 0, 2 do
      local given = {prefetch = prefetch}
      for key, value in pairs(kSettings[i]) do given[key] = value end
      local net = new("fully_shard", given, false)
      local opt = mh.optim.SGD(net:parameters(), {lr = 0.1})
      for _ = 1, 2 do  -- the second step knows the order
        opt:zero_grad()
        local x, loss = mine(), nil
        testing.assert_equal(messages_of(function() loss = net(x):square():mean() end), expected[1] * kUnits * (ranks - 1))
        testing.assert_equal(messages_of(function() loss:backward() end), expected[2] * kUnits * (ranks - 1))
        -- Sums of an earlier pass are put aside, not sent again.
        testing.assert_equal(messages_of(function() net(x):square():mean():backward() end), again[i] * kUnits * (ranks - 1))
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
    for _ = 1, 2 do  -- the second pass knows the order
      net:zero_grad()
      local y = net(mine())
      testing.assert_equal(messages_of(function() y:square():mean():backward() end), backward * kUnits * (ranks - 1))
    end
  end
end

--- Two layers; `reached(way, width)` is called while the unit's forward and backward are under way.
local Wide = nn.Module:extend("Wide")
function Wide:init(width, reached) self.width, self.reached, self.first, self.second = width, reached, nn.Linear(4, width), nn.Linear(width, 4) end
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
    --- Bytes sent by the time that the unit at `place` computes: its own and the next ones', and the sums of those before.
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
        wanted[place], wanted[3 + place] = expected("forward", kCalled, ahead, place), expected("backward", back, ahead, place)
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
  for name, value in pairs(copies:state_dict()) do state[name] = value:is_shard_tensor() and value:full_tensor() * 2 or value * 2 end
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

local Half = nn.Module:extend("Half")
function Half:init() self.first, self.blocks = nn.Linear(4, 6), nn.ModuleList{nn.Linear(6, 6), nn.Linear(6, 6)} end
function Half:forward(x)
  testing.assert_equal({x.dtype, self.first.weight.dtype}, {"bfloat16", "bfloat16"})
  local h = self.first(x)
  for i = 0, 1 do h = mh.tanh(self.blocks[i](h)) end
  return h
end

local function halves(options)
  mh.manual_seed(1)
  local net = Half()
  local given = {mesh = mesh, min_numel = 1, mp_policy = {param_dtype = "bfloat16"}}
  for key, value in pairs(options) do given[key] = value end
  for i = 0, 1 do mh.fully_shard(net.blocks[i], given) end
  return mh.fully_shard(net, given)
end

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

function tests.test_N35_sums_are_made_in_the_type_asked_for()
  for _, dtype in ipairs {"float32", "bfloat16"} do
    local net = halves {mp_policy = {param_dtype = "bfloat16", reduce_dtype = dtype}}
    local opt, seen = mh.optim.SGD(net:parameters(), {lr = 0.1}), {}
    opt:register_reducer_pre_hook(function(flat) seen[flat.dtype] = true end)
    net(mine():float()):float():square():mean():backward()
    testing.assert_equal(seen, {[dtype] = true})
    testing.assert_equal(net.first.weight.grad.dtype, "float32")
  end
end

-- ---- Sums -----------------------------------------------------------------------------------------------------------

function tests.test_N35_sums_of_a_unit_travel_before_backward_reaches_the_units_before_it()
  local net = new("fully_shard", kSettings[1])
  local opt, sent, seen = mh.optim.SGD(net:parameters(), {lr = 0.1}), 0, nil
  opt:register_reducer_pre_hook(function() sent = sent + 1 end)
  local x = mine()
  x:requires_grad_()
  x:register_hook(function() seen = sent end)  -- the last gradient of all

  net(x):square():mean():backward()

  testing.assert_equal({seen, sent}, {kUnits - 2, kUnits})  -- the first block ends with the module around it
end

function tests.test_N35_hooks_see_the_buckets_of_a_backward_pass()
  local function run(hooked)
    local net = new("fully_shard", kSettings[1])
    local opt = mh.optim.SGD(net:parameters(), {lr = 0.1})
    local before, after = 0, 0
    if hooked then
      opt:register_reducer_pre_hook(function(flat) before = before + 1 flat:mul_(2) end)
      opt:register_reducer_post_hook(function(flat) after = after + 1 flat:mul_(3) end)
    end
    net(mine()):square():mean():backward()
    local during = {before, after}
    opt:sync_shard_grad()  -- of copies
    return gradients(net), during
  end
  local expected = run(false)
  local seen, during = run(true)
  testing.assert_equal(during, {kUnits, kUnits})
  for name, grad in pairs(expected) do testing.assert_close(seen[name], grad * 6) end
end

function tests.test_N32_copies_may_be_summed_during_backward()
  local waiting, eager = replicated(), replicated():set_requires_gradient_sync(true)
  for _, net in ipairs {waiting, eager} do net(mine()):square():mean():backward() end
  testing.assert_equal(waiting.head.weight.grad.placements[1]:is_partial(), true)
  testing.assert_equal(eager.head.weight.grad.placements, {mh.Replicate()})
  testing.assert_equal(gradients(eager), gradients(waiting))
end

-- ---- What stands around units -----------------------------------------------------------------------------------------

-- N36: parameters of an outer module that are plain, the same on every rank.
function tests.test_N36_plain_parameters_outside_of_units()
  local function outer(inner, batch)
    local net = nn.Sequential(nn.Linear(4, 4):double(), nn.Linear(4, 6):double(), nn.Linear(6, 2):double())
    mh.manual_seed(5)
    for _, p in ipairs(net:parameters()) do p:requires_grad_(false):copy_(mh.randn(p.shape, kF64)):requires_grad_(true) end
    inner(net[1])
    return train(net, function(model) model(batch):square():mean():backward() end)
  end
  local expected = outer(function() end, mine():full_tensor())
  for _, op in ipairs {"replicate", "fully_shard"} do
    local function place(module) mh[op](module, {mesh = mesh, min_numel = op == "fully_shard" and 1 or nil}) end
    testing.assert_all_close(outer(place, mine()), expected)
    testing.assert_error(function() outer(place, mine():to_local()) end, "was computed from plain parameters")
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

-- ---- Mistakes -------------------------------------------------------------------------------------------------------

function tests.test_N30_an_optimizer_made_too_early_is_told()
  for _, op in ipairs {"fully_shard", "replicate"} do
    local net = nn.Linear(6, 9)
    local opt = mh.optim.SGD(net:parameters(), {lr = 0.1})
    mh[op](net, {mesh = mesh})
    net(mh.ones{4, 6}):sum():backward()
    testing.assert_error(function() opt:step() end, "is no longer the module's: fully_shard or replicate has put another in its place")
    mh.optim.SGD(net:parameters(), {lr = 0.1}):step()
  end
end

function tests.test_bad_options_are_named()
  local net = nn.Linear(2, 2)
  local function given(options)
    options.mesh = mesh
    return function() mh.fully_shard(net, options) end
  end
  testing.assert_error(given {reshard_after_forwards = true}, "unknown option 'reshard_after_forwards'; did you mean 'reshard_after_forward' or 'reshard_after_backward'?")
  testing.assert_error(given {reshard_after_backward = 1}, "reshard_after_backward is true or false, got 1")
  testing.assert_error(given {prefetch = -1}, "prefetch is a whole number, not negative, got -1")
  testing.assert_error(given {output = "plain"}, 'output is "shard" or "local", got plain')
  testing.assert_error(given {mp_policy = "bfloat16"}, "mp_policy is a table")
  testing.assert_error(given {mp_policy = {params_dtype = "bfloat16"}}, "mp_policy: unknown option 'params_dtype'; did you mean 'param_dtype'?")
  testing.assert_error(function() mh.replicate(net, {mesh = mesh, prefetch = 1}) end, "replicate: unknown option 'prefetch'")
end

return tests
