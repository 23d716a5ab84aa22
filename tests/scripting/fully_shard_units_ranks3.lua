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
  self.again, self.turn = false, 0
end
function Net:forward(x)
  local h = self.embed(x)
  for i = 0, 2 do h = self.blocks[i](h) end
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
        opt:step()
      end
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

-- ---- Sums -----------------------------------------------------------------------------------------------------------

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

return tests
