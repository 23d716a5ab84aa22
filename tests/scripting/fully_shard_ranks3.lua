-- SPDX-License-Identifier: Apache-2.0
-- Data parallel training with parameters in blocks or copied (fully_shard, replicate), against each other bit by bit
-- and against one plain model.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local runs = require "support.training_runs"
local nn = mh.nn

local tests = {}
local new, whole = runs.new, runs.whole
local kF64 = {dtype = "float64"}
local S, R, Stored = mh.Shard, mh.Replicate, mh.Stored
local ranks = mh.world_size()
local mesh = mh.init_device_mesh(mh.device(), {ranks}, {"dp"})

-- ---- Models ---------------------------------------------------------------------------------------------------------

local Mlp = nn.Module:extend("Mlp")
function Mlp:init()
  self.fc1, self.norm, self.fc2 = nn.Linear(6, 11), nn.LayerNorm(11), nn.Linear(11, 5)
  self.scale, self.unused = nn.Parameter(mh.ones{5}), nn.Linear(3, 4)
end
function Mlp:forward(x) return self.fc2(self.norm(mh.gelu(self.fc1(x)))) * self.scale end

local ConvNet = nn.Module:extend("ConvNet")
function ConvNet:init()
  self.conv, self.norm, self.head = nn.Conv2d(2, 7, 3, {padding = 1, bias = false}), nn.BatchNorm2d(7),
      nn.Conv2d(7, 5, 1)
end
function ConvNet:forward(x) return self.head(mh.relu(self.norm(self.conv(x)))) end

local Words = nn.Module:extend("Words")  -- tokens; the head has the weight of the table
function Words:init()
  self.table, self.inner, self.head = nn.Embedding(13, 8), nn.Linear(8, 8), nn.Linear(8, 13, {bias = false})
  self.head.weight = self.table.weight
end
function Words:forward(x)
  local h = self.table(x)
  h = h + mh.scaled_dot_product_attention(h, h, self.inner(h))
  return self.head(h)
end

local function field(shape)
  mh.manual_seed(3)
  return mh.randn(shape, kF64)
end
local cases = {
  mlp = {make = Mlp, x = field{70, 6}},
  sequence = {make = Mlp, x = field{7, 4, 6}},
  convnet = {make = ConvNet, x = field{7, 2, 5, 4}},
  words = {make = Words, x = mh.arange(0, 28):reshape{7, 4}:remainder(13)},
}

--- This rank's rows of `x`: uneven, the last rank has none.
local function rows_of(x)
  local rows = {}
  for rank, share in ipairs(({[3] = {4, 3, 0}, [4] = {3, 1, 3, 0}})[ranks]) do rows[rank] = share * x.shape[1] // 7 end
  return rows
end
local function mine(x, rows)
  rows = rows or rows_of(x)
  local begin = 0
  for rank = 1, mesh.rank do begin = begin + rows[rank] end
  return x:narrow(0, begin, rows[mesh.rank + 1])
end

--- Losses, the first step's gradients, and parameters and buffers after three steps.
local function train(net, x)
  local seen = runs.train(net, x, nil, function(step, seen)
    for name, p in net:named_parameters() do
      if step == 1 and p.grad then seen["gradient of " .. name] = whole(p.grad) end
    end
  end)
  for name, b in net:named_buffers() do seen[name] = whole(b) end
  return seen
end

local function fully_sharded(make)
  local net = new(make)
  for _, child in ipairs(net:children()) do mh.fully_shard(child, {mesh = mesh, min_numel = 1}) end
  return mh.fully_shard(net, {mesh = mesh, min_numel = 1})
end
local function replicated(make) return mh.replicate(new(make), {mesh = mesh}) end

-- ---- Tests ----------------------------------------------------------------------------------------------------------

for name, case in pairs(cases) do
  -- N11: states of optimizers are divided, too. N31: what they give is equal.
  tests["test_V15_N11_N31_blocks_and_copies_train_alike_" .. name] = function()
    local expected = train(new(case.make), case.x)
    local copied = train(replicated(case.make), mine(case.x))
    local sharded = train(fully_sharded(case.make), mine(case.x))

    testing.assert_all_close(sharded, expected)
    testing.assert_equal(sharded, copied)  -- bit by bit
  end
end

function tests.test_V15_parameters_are_kept_in_level_blocks()
  local net = fully_sharded(Mlp)
  local held = {}
  for name, p in net:named_parameters() do
    local rows = p.placements[1].sizes
    testing.assert_equal(p.placements[1]:is_stored(), p.shape[1] >= ranks)
    for rank = 1, ranks do
      held[rank] = (held[rank] or 0) + (rows and rows[rank] * p:numel() // p.shape[1] or p:numel())
    end
  end
  table.sort(held)
  testing.assert_equal(held[ranks] - held[1] <= 36, true)  -- rows of this weight or of models before
  local tall = fully_sharded(function() return nn.Linear(2, 9) end).weight
  testing.assert_equal(tostring(tall.placements[1]):sub(1, 9), "Stored(0,")

  local wide = fully_sharded(function() return nn.Linear(9, 2) end).weight  -- too few rows: columns
  testing.assert_equal(tostring(wide.placements[1]):sub(1, 9), "Stored(1,")
  local small = fully_sharded(function() return nn.Linear(2, 2) end).weight
  testing.assert_equal(small.placements, {R()})
  -- fewer than 1024 elements
  testing.assert_equal(mh.fully_shard(new(Mlp), {mesh = mesh}).fc1.weight.placements, {R()})

  local opt = mh.optim.AdamW(net:parameters(), {lr = 0.1})
  net(mine(cases.mlp.x)):sum():backward()
  opt:step()
  local state = opt:state_dict().state
  for i, p in ipairs(net:parameters()) do
    if state[i].exp_avg then testing.assert_equal(state[i].exp_avg.placements, p.placements) end
  end
end

-- Weights are sent, activations never do, however few samples there are.
function tests.test_V15_no_activation_moves_for_a_stored_weight()
  for name, case in pairs(cases) do
    for _, rows in ipairs {rows_of(case.x), ({[3] = {1, 0, 0}, [4] = {0, 1, 0, 0}})[ranks]} do
      local net = fully_sharded(case.make)
      local _, records = mh.op_trace(function() net(mine(case.x, rows)) end)
      local fetched = 0
      for _, record in ipairs(records) do
        local inputs = table.concat(record.inputs, " | ")
        if inputs:find("Stored", 1, true) then
          for _, input in ipairs(record.inputs) do
            local moves = input:find("->", 1, true)
            if moves and input:find("Stored", 1, true) then fetched = fetched + 1 end
            if moves and not input:find("Stored", 1, true) then
              error(name .. ": " .. record.op .. " moves " .. inputs)
            end
          end
        end
      end
      testing.assert_equal(fetched > 0, true)
    end
  end
end

function tests.test_a_step_of_the_optimizer_sends_nothing()
  local net = fully_sharded(Mlp)
  local opt = mh.optim.AdamW(net:parameters(), {lr = 0.1})
  for step = 1, 2 do
    net(mine(cases.mlp.x)):sum():backward()
    opt:sync_shard_grad()
    local before = mh.comm_stats().bytes
    opt:step()
    testing.assert_equal(mh.comm_stats().bytes - before, 0)
  end
end

function tests.test_V15_frozen_shared_and_functional()
  local function outcome(net, x)
    net.fc1.weight:requires_grad_(false)
    local first, second = net(x), net(x * 2)  -- two forwards, one backward
    local y = (first * second):sum() + mh.linear(net.fc1(x), net.fc2.weight):square():sum()
    y:backward()
    local seen = {y = whole(y)}
    for name, p in net:named_parameters() do seen[name] = p.grad and whole(p.grad) end
    testing.assert_equal(net.fc1.weight.grad, nil)
    return seen
  end
  local x = cases.mlp.x
  local expected = outcome(new(Mlp), x)
  local sharded = outcome(fully_sharded(Mlp), mh.local_batch(mine(x), mesh))
  testing.assert_all_close(sharded, expected)
  testing.assert_equal(sharded, outcome(replicated(Mlp), mh.local_batch(mine(x), mesh)))

  local net = fully_sharded(Words)
  testing.assert_equal(rawequal(net.head.weight, net.table.weight), true)
end

function tests.test_V15_second_derivatives_and_recomputed_segments()
  local function outcome(net, x)
    x = x:detach():requires_grad_()
    local y = mh.checkpoint(function(value) return net(value) end, x):sin():sum()
    local first = mh.grad(y, net.fc1.weight, {create_graph = true})
    first:square():sum():backward()
    return {first = whole(first), second = whole(net.fc2.weight.grad), x = whole(x.grad)}
  end
  local x = cases.mlp.x
  local expected = outcome(new(Mlp), x)
  testing.assert_all_close(outcome(fully_sharded(Mlp), mh.local_batch(mine(x), mesh)), expected)
end

-- V11 V20 N32 N45: gradients are summed in few messages, by sync_shard_grad or by step().
function tests.test_V11_N32_N45_gradients_add_up_over_micro_batches()
  local function accumulate(net, sync, finish)
    local x = sync == "plain" and cases.mlp.x or mine(cases.mlp.x)
    if type(sync) == "boolean" then net:set_requires_gradient_sync(sync) end
    local is_plain = sync == "plain"  -- whose optimizer is made without build_optimizer
    local opt = is_plain and mh.optim.SGD(net:parameters(), {lr = 0.1})
        or mh.build_optimizer(net, mh.optim.SGD, {lr = 0.1})
    local during = 0
    opt:register_reducer_pre_hook(function() during = during + 1 end)
    for micro = 1, 3 do net(x * micro):square():sum():backward() end
    local kinds, backward = {}, during
    for _, p in ipairs(net:parameters()) do
      if p.grad and p:is_shard_tensor() then
        kinds[#kinds + 1] = p.grad.placements[1]:is_partial() and "sum" or "own"
      end
    end
    if finish then
      opt:sync_shard_grad()
      for _, p in ipairs(net:parameters()) do
        if p.grad then testing.assert_equal(p.grad.placements, p.placements) end
      end
    end
    opt:step()
    local seen = {}
    for name, p in net:named_parameters() do seen[name] = whole(p) end
    return seen, table.concat(kinds, " "), backward
  end
  local expected = accumulate(new(Mlp), "plain", false)
  local eager, kinds, during = accumulate(fully_sharded(Mlp), true, true)
  testing.assert_all_close(eager, expected)
  testing.assert_equal(kinds:find("sum", 1, true), nil)
  local deferred, sums, none = accumulate(fully_sharded(Mlp), false, true)
  testing.assert_all_close(deferred, expected)
  testing.assert_equal(sums:find("sum", 1, true) ~= nil, true)
  testing.assert_equal(none, 0)
  testing.assert_equal(during >= 3, true)
  testing.assert_equal(deferred, (accumulate(replicated(Mlp), "copies", true)))
  testing.assert_equal(deferred, (accumulate(fully_sharded(Mlp), false, false)))
end

function tests.test_N33_N35_gradients_are_scaled_after_the_sum_and_hooks_see_buckets()
  local net = fully_sharded(Mlp):set_requires_gradient_sync(false)
  local opt = mh.optim.SGD(net:parameters(), {lr = 0.1})
  net(mh.local_batch(field{60, 6}:narrow(0, 20 * mesh.rank % 60, 20), mesh)):square():sum():backward()
  local before, after = {}, {}
  opt:register_reducer_pre_hook(function(flat) before[#before + 1] = flat:numel() end)
  opt:register_reducer_post_hook(function(flat) after[#after + 1] = flat:numel() flat:mul_(2) end)

  testing.assert_error(function() opt:scale_grads(0.5) end, "scale_grads: gradients are still sums over the ranks")
  local expected = {}
  for name, p in net:named_parameters() do  -- some are summed on their way already
    if p.grad then expected[name] = whole(p.grad) * (p.grad.placements[1]:is_partial() and 0.5 or 0.25) end
  end
  opt:sync_shard_grad()
  opt:scale_grads(0.25)

  testing.assert_equal(#before > 0 and #before == #after, true)
  for name, p in net:named_parameters() do
    if p.grad then testing.assert_close(p.grad:full_tensor(), expected[name]) end
  end
end

function tests.test_half_gradients_are_summed_in_the_type_asked_for()
  local net = mh.replicate(nn.Linear(4, 4):to("bfloat16"), {mesh = mesh})
  local opt = mh.optim.SGD(net:parameters(), {lr = 0.1})
  net(mh.local_batch(mh.ones({64, 4}, {dtype = "bfloat16"}))):sum():backward()
  local dtypes = {}
  opt:register_reducer_pre_hook(function(flat) dtypes[flat.dtype] = true end)
  opt:sync_shard_grad{reduce_dtype = "float32"}

  testing.assert_equal(dtypes, {float32 = true})
  testing.assert_equal(net.bias.grad.dtype, "bfloat16")
  testing.assert_close(net.bias.grad:full_tensor():float(), mh.full({4}, 64.0 * ranks), {rtol = 1e-2})
end

-- N34: one number is reduced.
function tests.test_N34_the_norm_needs_one_message()
  local x = cases.mlp.x
  local function norm_of(net, batch, kind, most)
    net(batch):square():sum():backward()
    local opt = mh.optim.SGD(net:parameters(), {lr = 0.1})
    opt:sync_shard_grad()
    local before = mh.comm_stats().by_kind
    local norm = opt:clip_gnorm(most, kind)
    local after = mh.comm_stats().by_kind
    local calls = 0
    for verb, count in pairs(after) do calls = calls + count.calls - before[verb].calls end
    return norm, whole(net.fc1.weight.grad), calls
  end
  for _, kind in ipairs {2, 1, 3, math.huge} do
    local expected, gradient = norm_of(new(Mlp), x, kind, 0.5)
    for _, make in ipairs {fully_sharded, replicated} do
      local norm, clipped, calls = norm_of(make(Mlp), mine(x), kind, 0.5)
      testing.assert_close(norm, expected)
      testing.assert_close(clipped, gradient)
      testing.assert_equal(calls, 1)
    end
  end
  local net = fully_sharded(Mlp)
  testing.assert_close(mh.clip_grad_norm(net:parameters(), 1.0), 0.0)
  testing.assert_error(function() mh.clip_grad_norm(net:parameters(), 1.0, {norm_type = -1}) end, "norm_type is -1")
end

function tests.test_labels_and_inputs_of_a_rank()
  local labels = mh.local_batch(mine(mh.arange(0, 7)), mesh)
  testing.assert_equal(labels:full_tensor(), mh.arange(0, 7))
  testing.assert_equal(labels.placements, {S(0, rows_of(mh.arange(0, 7)))})
  testing.assert_equal(mh.local_batch(labels, mesh), labels)
  testing.assert_equal(mh.local_batch(mh.tensor(2.0), mesh).placements, {R()})
  local net = fully_sharded(Mlp)
  testing.assert_equal(net(mine(cases.mlp.x)).placements, {S(0, rows_of(cases.mlp.x))})
  local off = mh.fully_shard(new(Mlp), {mesh = mesh, input = false, min_numel = 1})
  testing.assert_close(off(cases.mlp.x):full_tensor(), new(Mlp)(cases.mlp.x))
  testing.assert_error(function() mh.local_batch(mh.zeros({2}, {dtype = mesh.rank == 1 and "float64" or "float32"}),
    mesh) end, "differ in dtype or number of dims")
  testing.assert_error(function() net(mh.zeros({2, mesh.rank == 1 and 6 or 7}, kF64)) end,
      "the blocks do not form a grid")
end

function tests.test_bad_options_are_named()
  local net = new(Mlp)
  local rows = mh.fully_shard(nn.Linear(5, 20), {mesh = mesh, min_numel = 1, unit_rows = 8}).weight:shard_sizes(0)
  table.sort(rows)
  testing.assert_equal(rows, mh.world_size() == 3 and {4, 8, 8} or {20})  -- three units of rows
  testing.assert_error(function() mh.fully_shard(nn.Linear(5, 20), {mesh = mesh, unit_rows = 0}) end,
      "unit_rows = 0, expected a number of rows")
  testing.assert_error(function() mh.fully_shard(net, {mesh = mesh, min_nume = 1}) end,
      "unknown option 'min_nume'; did you mean 'min_numel'?")
  testing.assert_error(function() mh.replicate(net, {mesh = mesh, min_numel = 1}) end,
      "replicate: unknown option 'min_numel'")
  testing.assert_error(function() mh.fully_shard(net, {}) end, "fully_shard: no mesh given")
  testing.assert_error(function() mh.fully_shard(mh.zeros{2}, {mesh = mesh}) end,
      "expected an nn.Module, got Tensor float32 [2]")
  testing.assert_error(function() mh.fully_shard(net, {mesh = mesh, input = "x"}) end, "input is true or false")
  net(cases.mlp.x):sum():backward()
  testing.assert_error(function() mh.fully_shard(net, {mesh = mesh}) end, "fully_shard: 'scale' has a gradient")
  net = fully_sharded(Mlp)
  local weight = net.fc1.weight
  mh.replicate(net, {mesh = mesh})  -- warns
  testing.assert_equal(rawequal(net.fc1.weight, weight), true)
end

-- The same by hand.
function tests.test_stored_placements_in_plans()
  testing.assert_equal(tostring(Stored(0)), "Stored(0)")
  testing.assert_equal(Stored(0) == S(0), false)
  local net = mh.parallelize_module(new(Mlp), mesh, {parameter = {["fc1.weight"] = {Stored(0)},
      ["fc2.weight"] = {Stored(1)}}})
  testing.assert_equal(tostring(net.fc2.weight.placements[1]):sub(1, 9), "Stored(1,")
  testing.assert_equal(tostring(net.fc1.weight:t().placements[1]):sub(1, 9), "Stored(1,")
  testing.assert_equal((net.fc1.weight * 2).placements[1]:is_stored(), true)
  testing.assert_equal((net.fc1.weight + mh.distribute_tensor(mh.zeros({11, 6}, kF64), mesh,
      {S(0)})).placements[1]:is_stored(), false)
  testing.assert_all_close(train(net, mh.local_batch(mine(cases.mlp.x), mesh)), train(new(Mlp), cases.mlp.x))
end

return tests
