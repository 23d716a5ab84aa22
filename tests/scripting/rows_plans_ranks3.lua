-- SPDX-License-Identifier: Apache-2.0
-- Rows of tests/FEATURES.md about plans, gradients and placements, each with the assertion that its text asks for.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn, optim = mh.nn, mh.optim

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"tp"})
local kF64 = {dtype = "float64"}
local S, R = mh.Shard, mh.Replicate
local tests = {}

local function plain(x) return x:is_shard_tensor() and x:full_tensor() or x end
local function where(x)
  if not x:is_shard_tensor() then return "plain" end
  local p = x.placements[1]
  return p:is_shard() and ("S(%d)"):format(p.dim) or p:is_partial() and "P" or "R"
end

--- True if this rank's block of `x` has the same bits on every rank.
local function same_on_all_ranks(x)
  local mine = (x:is_shard_tensor() and x:to_local() or x):detach():reshape{1, -1}
  local all = mh.from_local(mine, mesh, {S(0)}):full_tensor()
  return mh.equal(all, all:narrow(0, 0, 1):expand(all.shape))
end

local MLP = require "support.mlp"

local function mlp()
  mh.manual_seed(5)
  return MLP(6, 7):double()
end
local function batch(rows)
  mh.manual_seed(8)
  return mh.randn({rows, 6}, kF64)
end
local function mlp_plan()
  return {
    parameter = {["fc1.weight"] = {S(0)}, ["fc1.bias"] = {S(0)}, ["fc2.weight"] = {S(1)}, ["fc2.bias"] = {R()}},
    forward = {["fc1.input"] = {{R()}}, ["fc2.output"] = {{R()}}},
  }
end

local function gradients(net)
  local found = {}
  for name, p in net:named_parameters() do found[name] = plain(p.grad) end
  return found
end
local function values(net)
  local found = {}
  for name, p in net:named_parameters() do found[name] = plain(p:detach()):clone() end
  return found
end

--- Counts the gradients of `net` that are sums still to be made.
local function partial_gradients(net)
  local count = 0
  for _, p in net:named_parameters() do count = count + (where(p.grad) == "P" and 1 or 0) end
  return count
end

-- ---- Placements -----------------------------------------------------------------------------------------------------

function tests.test_V03_a_chain_of_placements_in_forward_and_backward()
  local seen = {}
  local Note = nn.Module:extend("Note")
  function Note:forward(x)
    seen[#seen + 1] = where(x)
    return x * 2
  end
  local function chain()
    mh.manual_seed(5)
    return nn.Sequential(Note(), nn.Linear(6, 7), Note(), nn.Linear(7, 5), Note()):double()
  end
  local function outcome(net)
    local x = batch(9):requires_grad_()
    local y = net(x)
    y:sin():sum():backward()
    local found = gradients(net)
    found.output, found.input = plain(y:detach()), plain(x.grad)
    return found, y
  end
  local expected = outcome(chain())
  seen = {}

  local actual, y = outcome(mh.parallelize_module(chain(), mesh,
    {forward = {["0.input"] = {{S(0)}}, ["2.input"] = {{R()}}, ["4.input"] = {{S(1)}}}}))

  testing.assert_equal(seen, {"S(0)", "R", "S(1)"})
  testing.assert_equal(where(y), "S(1)")
  testing.assert_all_close(actual, expected)
end

function tests.test_V05_blocks_of_planned_parameters()
  if mh.world_size() ~= 3 then return end
  local net = mh.parallelize_module(mlp(), mesh, {parameter = mlp_plan().parameter})
  local mine = ({3, 2, 2})[mesh.rank + 1]  -- of 7

  local shapes, places = {}, {}
  for name, p in net:named_parameters() do shapes[name], places[name] = p:to_local().shape, where(p) end

  testing.assert_equal(shapes, {["fc1.weight"] = {mine, 6}, ["fc1.bias"] = {mine}, ["fc2.weight"] = {6, mine},
      ["fc2.bias"] = {6}})
  testing.assert_equal(places, {["fc1.weight"] = "S(0)", ["fc1.bias"] = "S(0)", ["fc2.weight"] = "S(1)",
      ["fc2.bias"] = "R"})
end

function tests.test_V05_blocks_of_the_sizes_that_a_plan_says()
  if mh.world_size() ~= 3 then return end
  local mine = ({5, 0, 2})[mesh.rank + 1]
  local net = mh.parallelize_module(mlp(), mesh, {parameter = {["fc1.weight"] = {mh.Shard(0, {5, 0, 2})},
      ["fc2.weight"] = {mh.Shard(1, {5, 0, 2})}}})

  testing.assert_equal({net.fc1.weight:to_local().shape, net.fc2.weight:to_local().shape}, {{mine, 6}, {6, mine}})
  testing.assert_equal(net.fc1.weight:full_tensor(), mlp().fc1.weight)
end

function tests.test_V06_the_planned_output_is_replicated_and_right()
  local expected = mlp()(batch(5))

  local y = mh.parallelize_module(mlp(), mesh, mlp_plan())(batch(5))

  testing.assert_equal(where(y), "R")
  testing.assert_equal(y:to_local().shape, {5, 6})
  testing.assert_close(y:full_tensor(), expected)
end

function tests.test_V07_N45_parameters_absent_from_the_plan_stay_bitwise_equal()
  local net = mlp()
  local start = values(net)
  mh.parallelize_module(net, mesh, {parameter = {["fc1.weight"] = {S(0)}}})  -- three of four are not in it
  local x = mh.distribute_tensor(batch(301), mesh, {S(0)})
  local opt = optim.AdamW(net:parameters(), {lr = 0.05})

  for _ = 1, 3 do
    opt:zero_grad()
    net(x):sin():sum():backward()  -- no reduction of the user's
    opt:step()
  end

  for _, name in ipairs {"fc1.bias", "fc2.weight", "fc2.bias"} do
    local p = net:get_parameter(name)
    testing.assert_equal(where(p), "R")
    testing.assert_equal(same_on_all_ranks(p), true)
    testing.assert_equal(mh.equal(plain(p:detach()), start[name]), false)
    testing.assert_equal(same_on_all_ranks(plain(p.grad)), true)
  end
end

function tests.test_P02_a_dotted_name_reaches_a_nested_module_in_place()
  local Outer = nn.Module:extend("Outer")
  function Outer:init() self.net = nn.Sequential(MLP(6, 7), MLP(6, 5)) end
  function Outer:forward(x) return self.net(x) end
  mh.manual_seed(5)
  local outer = Outer():double()
  local inner, fc, sibling = outer.net[0], outer.net[0].fc1, outer.net[1].fc1
  local expected = outer(batch(4))

  mh.parallelize_module(outer, mesh, {["net.0.fc1"] = mh.ColwiseParallel{output_layouts = R()}})

  testing.assert_equal(rawequal(outer.net[0], inner) and rawequal(outer.net[0].fc1, fc)
      and rawequal(outer.net[1].fc1, sibling), true)
  testing.assert_equal(where(fc.weight) .. where(fc.bias), "S(0)S(0)")
  testing.assert_equal(where(inner.fc2.weight):find("S", 1, true), nil)
  testing.assert_equal(where(sibling.weight):find("S", 1, true), nil)
  testing.assert_close(plain(outer(batch(4))), expected)
end

function tests.test_P15_a_plan_without_styles_adds_nothing_to_the_trace()
  local net = mh.parallelize_module(mlp(), mesh, {parameter = mlp_plan().parameter})
  local p = values(mlp())
  local w1, b1 = mh.distribute_tensor(p["fc1.weight"], mesh, {S(0)}), mh.distribute_tensor(p["fc1.bias"], mesh, {S(0)})
  local w2, b2 = mh.distribute_tensor(p["fc2.weight"], mesh, {S(1)}), mh.distribute_tensor(p["fc2.bias"], mesh, {R()})
  local x = mh.distribute_tensor(batch(5), mesh, {R()})
  local function raw() return mh.linear(mh.linear(x, w1, b1):gelu(), w2, b2) end
  local function trace(fn)
    local lines = {}
    local _, records = mh.op_trace(function() mh.no_grad(fn) end)
    for i, one in ipairs(records) do
      lines[i] = ("%s(%s) -> %s, %d bytes"):format(one.op, table.concat(one.inputs, "; "),
          table.concat(one.outputs, "; "), one.bytes)
    end
    return lines
  end

  local through_module, of_operators = trace(function() net(x) end), trace(raw)

  testing.assert_equal(#of_operators >= 3, true)
  testing.assert_equal(through_module, of_operators)
end

-- ---- Gradients ------------------------------------------------------------------------------------------------------

--- Trains on 301 rows, so many that gradients of replicated weights stay sums until they are read. Gives the values
--- after three steps, the gradients of the first, the least number of Partial gradients that a step had, and the
--- messages of their sums.
local function train(net, x, make, sync)
  local opt, first, least, messages = make(net:parameters()), nil, math.huge, 0
  local function counted(fn, ...)
    local before = mh.comm_stats().messages
    fn(...)
    messages = messages + mh.comm_stats().messages - before
  end
  for step = 1, 3 do
    opt:zero_grad()
    local y = net(x)
    local loss = (y * y + y:sin()):mean()
    loss:backward()
    if sync then counted(mh.finish_grad_sync, net) end
    if x:is_shard_tensor() then least = math.min(least, partial_gradients(net)) end
    if step == 1 and (sync or not x:is_shard_tensor()) then first = gradients(net) end
    counted(opt.step, opt)
  end
  return values(net), first, least, messages
end

local kOptimizers = {
  {"sgd", function(p) return optim.SGD(p, {lr = 0.3, momentum = 0.9, weight_decay = 0.1}) end},
  {"adamw", function(p) return optim.AdamW(p, {lr = 0.05}) end},
}
for _, one in ipairs(kOptimizers) do
  tests["test_V11_V20_steps_meet_partial_gradients_" .. one[1]] = function()
    local function cut() return mh.distribute_tensor(batch(301), mesh, {S(0)}) end
    local function divided() return mh.parallelize_module(nn.Sequential(mlp(), nn.LayerNorm(6):double()), mesh, {}) end
    local expected, expected_gradients = train(nn.Sequential(mlp(), nn.LayerNorm(6):double()), batch(301), one[2])

    local implicit, _, met, messages = train(divided(), cut(), one[2], false)
    local explicit, synced, left, of_sync = train(divided(), cut(), one[2], true)

    testing.assert_equal(met, 6)   -- all, at every step
    testing.assert_equal(left, 0)  -- V11: none after the reduction
    testing.assert_equal(messages, of_sync)  -- V20: step sums all at once, too
    testing.assert_all_close(synced, expected_gradients)
    testing.assert_all_close(explicit, expected)
    testing.assert_all_close(implicit, expected)
    for name, value in pairs(implicit) do testing.assert_equal(mh.equal(value, explicit[name]), true) end
  end
end

function tests.test_V21_the_script_of_thirty_lines()
  local path, lines = "tests/examples/mlp_plan.lua", 0
  for _ in io.lines(path) do lines = lines + 1 end
  testing.assert_equal(lines <= 30, true)

  local losses, net = dofile(path)

  -- The same model whole, on plain tensors.
  mh.manual_seed(1)
  local whole = MLP(8, 20):double()
  local x, y = mh.randn({16, 8}, kF64), mh.randn({16, 8}, kF64)
  local opt, expected = optim.AdamW(whole:parameters(), {lr = 0.01}), {}
  for step = 1, 3 do
    opt:zero_grad()
    local loss = mh.mse_loss(whole(x), y)
    loss:backward()
    opt:step()
    expected[step] = loss:item()
  end
  testing.assert_close(mh.tensor(losses, kF64), mh.tensor(expected, kF64))
  testing.assert_all_close(values(net), values(whole))
  testing.assert_equal(where(net.fc1.weight) .. where(net.fc2.weight) .. where(net.fc2.bias), "S(0)S(1)R")
end

function tests.test_S27_plain_weights_get_equal_gradients_on_all_ranks()
  local function outcome(x, w, k)
    local y = mh.conv2d(x, k, nil, {padding = 1}):tanh():matmul(w)
    y:square():sum():backward()
    return {w = w.grad, k = k.grad}
  end
  mh.manual_seed(4)
  local x, w, k = mh.randn({2, 3, 40, 5}, kF64), mh.randn({5, 4}, kF64), mh.randn({3, 3, 3, 3}, kF64)
  local function leaf(t) return t:clone():requires_grad_() end
  local expected = outcome(x, leaf(w), leaf(k))
  for _, cut in ipairs {S(2), S(2, mh.world_size() == 3 and {1, 39, 0} or nil), S(0)} do
    local actual = outcome(mh.distribute_tensor(x, mesh, {cut}), leaf(w), leaf(k))

    testing.assert_all_close(actual, expected)
    for _, grad in ipairs {actual.w, actual.k} do
      testing.assert_equal(where(grad), "plain")
      testing.assert_equal(same_on_all_ranks(grad), true)
    end
  end
end

return tests
