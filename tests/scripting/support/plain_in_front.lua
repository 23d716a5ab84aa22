-- SPDX-License-Identifier: Apache-2.0
-- N12, N36: plain layers in front of parts that are divided or trained data parallel. The oracle is the same model on
-- one plain
-- tensor: losses, gradients of plain parameters, and all weights after three steps, which must be equal on all ranks.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local refused = require "support.refused"
local runs = require "support.parallel_runs"
local nn, optim = mh.nn, mh.optim
local plain, config_of = runs.plain, runs.config_of
local random, kF64 = runs.random, runs.kF64

local ranks, mesh = mh.world_size(), runs.row()
local tests = {}

--- The rows of unit `u` of `units`, other numbers of them for each; with `empty` the last has none.
local function rows_of(x, u, units, empty)
  local sizes, begin = {}, 0
  for i = 1, units do sizes[i] = i end
  if empty then sizes[units] = 0 end
  for i = 1, u do begin = begin + sizes[i] end
  return x:narrow(0, begin, sizes[u + 1])
end

local function all_rows(units, empty) return units * (units + 1) // 2 - (empty and units or 0) end

local function front() mh.manual_seed(2) return nn.Sequential(nn.Linear(4, 6), nn.Tanh()):double() end
local function back() mh.manual_seed(3) return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)):double() end

local function parameters_of(...)
  local list = {}
  for _, module in ipairs {...} do
    for _, parameter in ipairs(module:parameters()) do list[#list + 1] = parameter end
  end
  return list
end

--- Three steps: losses, the first gradients of `watched`, and all weights.
local function train(forward, modules, watched, make)
  local parameters = parameters_of(table.unpack(modules))
  local opt = make and make(parameters) or optim.SGD(parameters, {lr = 0.1, momentum = 0.9})
  local seen = {}
  for step = 1, 3 do
    opt:zero_grad()
    local loss = forward()
    loss:backward()
    seen["loss " .. step] = plain(loss)
    if step == 1 then
      for i, parameter in ipairs(watched:parameters()) do seen["gradient " .. i] = plain(parameter.grad) end
    end
    opt:step()
  end
  for i, parameter in ipairs(parameters) do seen["weight " .. i] = plain(parameter) end
  return seen
end

--- A plain parameter is the same on all ranks.
local function check_equal_on_ranks(module)
  for _, parameter in ipairs(module:parameters()) do
    local all = mh.from_local(plain(parameter):reshape{1, -1}:contiguous(), mesh, {mh.Shard(0)}):full_tensor()
    testing.assert_equal(mh.equal(all, all:narrow(0, 0, 1):expand(all.shape)), true)
  end
end

local kWays = {
  fully_shard = function(b) return mh.fully_shard(b, {mesh = mesh, min_numel = 1}) end,
  replicate = function(b) return mh.replicate(b, {mesh = mesh}) end,
  local_batch = function(b)
    mh.replicate(b, {mesh = mesh, input = false})
    return function(h) return b(mh.local_batch(h, mesh)) end
  end,
  from_local = function(b) return function(h) return b(mh.from_local(h, mesh, {mh.Shard(0)})) end end,
  from_local_sum = function(b)
    return function(h)  -- each rank gives an addend of the whole
      local sizes = mh.from_local(mh.zeros({h.shape[1]}), mesh, {mh.Shard(0)}):shard_sizes(0)
      local before, total = 0, 0
      for i, size in ipairs(sizes) do
        if i <= mesh.rank then before = before + size end
        total = total + size
      end
      local padded = mh.cat{mh.zeros({before, 6}, kF64), h, mh.zeros({total - before - h.shape[1], 6}, kF64)}
      return b(mh.from_local(padded, mesh, {mh.Partial()}))
    end
  end,
  parallelize = function(b) return mh.parallelize(b, {x = mh.zeros({2, 6}, kF64)}, "dp", config_of(1, ranks)) end,
  parallelize_zero = function(b)
    return mh.parallelize(b, {x = mh.zeros({2, 6}, kF64)}, "dp", config_of(1, ranks, {use_zero = true}))
  end,
}

function tests.test_N36_gradients_of_plain_layers_in_front_are_those_of_one_rank()
  for _, empty in ipairs {false, true} do
    local x = random(1, {all_rows(ranks, empty), 4})
    local mine = rows_of(x, mesh.rank, ranks, empty)
    local a, b = front(), back()
    local expected = train(function() return b(a(x)):square():mean() end, {a, b}, a)
    for _, way in pairs(kWays) do
      local plain_front, divided = front(), back()
      local forward = way(divided)

      local seen = train(function() return forward(plain_front(mine)):square():mean() end, {plain_front, divided},
          plain_front)

      testing.assert_all_close(seen, expected)
      check_equal_on_ranks(plain_front)
    end
  end
end

local Outer = nn.Module:extend("Outer")
function Outer:init()
  self.enter = front()
  self.inner = back()
  self.leave = nn.Linear(3, 2):double()
end
function Outer:forward(x) return self.leave(self.inner(self.enter(x))) end

-- nnScaler's second example: a part of the model is divided, and nothing is said about the rest.
function tests.test_N12_N36_a_part_is_divided_and_the_rest_left_as_it_is()
  local size = ranks > 2 and 2 or 1
  local units = ranks // size
  local x, y = random(1, {all_rows(units), 4}), random(2, {all_rows(units), 2})
  local function make() mh.manual_seed(8) return Outer() end
  local function steps(net, input, label, opt)
    return train(function() return mh.mse_loss(net(input), label) end, {net}, net.enter, opt)
  end
  local makers = {
    SGD = function(net) return mh.build_optimizer(net, optim.SGD, {lr = 0.1}) end,
    AdamW = function(net) return optim.AdamW(net:parameters(), {lr = 0.1}) end,
  }
  for class, maker in pairs(makers) do
    local expected = steps(make(), x, y, function(parameters) return optim[class](parameters, {lr = 0.1}) end)
    for _, zero in ipairs {false, true} do
      local net = make()
      mh.parallelize(net.inner, {x = mh.zeros({2, 6}, kF64)}, size > 1 and "tp" or "dp",
          config_of(size, ranks, {use_zero = zero}))
      local unit = net.inner.parallel.mesh["unit"]
      local input, label = rows_of(x, unit.rank, units), mh.local_batch(rows_of(y, unit.rank, units), unit)

      testing.assert_all_close(steps(net, input, label, function() return maker(net) end), expected)
      check_equal_on_ranks(net.enter)
    end
  end
end

-- A penalty, say, gives the same gradient on all ranks, which must not be summed.
function tests.test_N36_parameters_in_front_that_do_more()
  local x = random(1, {all_rows(ranks), 4})
  local mine = rows_of(x, mesh.rank, ranks)
  local programs = {
    penalty = function(a, b, given) return b(a(given)):square():mean() + 0.1 * a[0].weight:square():sum() end,
    behind = function(a, b, given)
      local y = b(a(given))
      return (y:matmul(a[0].weight:narrow(0, 0, 3)) + a[0].bias:narrow(0, 0, 4)):square():mean()
    end,
    recomputed = function(a, b, given) return b(mh.checkpoint(a, given)):square():mean() end,
    rest_recomputed = function(a, b, given) return mh.checkpoint(function(h) return b(h):square():mean() end,
    a(given)) end, recomputed_twice = function(a, b, given)
      return mh.checkpoint(function(t)
        local h = a(t)
        return mh.checkpoint(function(inner) return b(inner):square():mean() + mh.checkpoint(b, inner):mean() end, h)
      end, given:requires_grad_())
    end,
    slopes = function(a, b, given)
      local loss = b(a(given) * a[0].bias):square():mean()
      for _, slope in ipairs {mh.grad({loss}, a:parameters(), {create_graph = true})} do
        loss = loss + slope:square():sum()
      end
      return loss
    end,
    all_recomputed = function(a, b, given) return mh.checkpoint(function(h) return b(a(h)):square():mean() end,
    given:requires_grad_()) end, twice = function(a, b, given)
      local h = a(given)
      return (b(h) * b(h * 2)):sum() + b(h):mean()
    end,
  }
  for name, program in pairs(programs) do
    local a, b = front(), back()
    local expected = train(function() return program(a, b, x:clone()) end, {a, b}, a)
    local plain_front, divided = front(), mh.replicate(back(), {mesh = mesh})
    local seen = train(function() return program(plain_front, divided, mine:clone()) end, {plain_front, divided},
        plain_front)
    local done, problem = pcall(testing.assert_all_close, seen, expected)
    if not done then error(name .. ": " .. tostring(problem), 0) end
  end
end

function tests.test_N36_plain_parameters_in_a_local_map()
  local x = random(1, {all_rows(ranks), 4})
  local a = front()
  local expected = train(function() return a(x):square():mean() end, {a}, a)
  local cut, inside = mh.from_local(rows_of(x, mesh.rank, ranks), mesh, {mh.Shard(0)}), front()
  local mapped = mh.local_map(function(block) return inside(block) end,
      {out_placements = {{mh.Shard(0)}}, in_placements = {{mh.Shard(0)}}})
  testing.assert_all_close(train(function() return mapped(cut):square():mean() end, {inside}, inside), expected)
end

-- Marks of tensors count where blocks are computed from them, too.
function tests.test_N36_constants_and_own_rows_in_front()
  local x = random(1, {2 * ranks, 4})
  local mine = x:narrow(0, 2 * mesh.rank, 2)
  local function run(net, given, shift, own)
    net(front()((given + own) * shift)):square():mean():backward()
    return {shift = plain(shift.grad), own = own.grad}
  end
  local expected = run(back(), x, mh.ones({4}, kF64):requires_grad_(), mh.zeros({2 * ranks, 4}, kF64):requires_grad_())
  expected.own = expected.own:narrow(0, 2 * mesh.rank, 2)
  local net = mh.replicate(back(), {mesh = mesh})
  local own = mh.local_batch(mh.zeros({2, 4}, kF64):requires_grad_())
  local seen = run(net, mine, mh.constant(mh.ones({4}, kF64):requires_grad_()), own)
  testing.assert_all_close(seen, expected)
  optim.SGD({own}, {lr = 0.1}):step()
end

-- Leaves of which nothing is said, and that differ, are this rank's own.
function tests.test_N36_own_data_keeps_its_own_gradient()
  local x = random(1, {all_rows(ranks), 4})
  local mine = rows_of(x, mesh.rank, ranks):clone():requires_grad_()
  local all = x:clone():requires_grad_()
  back()(front()(all)):square():mean():backward()
  mh.replicate(back(), {mesh = mesh})(front()(mine)):square():mean():backward()
  testing.assert_close(mine.grad, rows_of(all.grad, mesh.rank, ranks))
end

-- Layers on a slice: ranks along the other dim have samples of their own.
function tests.test_N36_layers_on_a_slice_are_refused_or_train_as_on_one_rank()
  if ranks < 4 then return end
  local grid = mh.init_device_mesh(mh.device(), {2, ranks // 2}, {"dp", "tp"})
  local x = random(1, {4, 4})
  local mine = mh.distribute_tensor(x:narrow(0, 2 * grid:coordinate("dp"), 2), grid["tp"], {mh.Shard(1)})
  local function refused_of(a)
    refused(function() mh.local_batch(a(mine), grid["dp"]) end, 'so its gradients would not be summed over "dp"')
    refused(function() mh.lift(a(mine), grid, {mh.Partial()}) end, 'so its gradients would not be summed over "dp"')
    mh.no_grad(function() mh.local_batch(a(mine), grid["dp"]) end)
    mh.lift(a(mine), grid, {mh.Replicate()})
  end
  refused_of(front())
  refused_of(mh.parallelize_module(front(), grid["tp"], {parameter = {["0.weight"] = {mh.Shard(0)}}}))
  local whole, last = front(), back()
  local expected = train(function() return last(whole(x)):square():mean() end, {whole, last}, whole)
  local a, b = mh.replicate(front(), {mesh = grid["dp"], input = false}), back()
  local given = mh.local_batch(mine, grid["dp"])
  testing.assert_all_close(train(function() return b(a(given)):square():mean() end, {a, b}, a), expected)
end

-- Other ranks than those of a stage would not have the gradient of what it uses.
function tests.test_N36_what_no_stage_of_a_pipeline_trains_is_refused_on_all_ranks()
  local line = mh.init_device_mesh(mh.device(), {ranks}, {"pp"})
  local scale, samples = nn.Parameter(mh.ones({6}, kF64)), {random(1, {2, 6}), random(2, {3, 6})}
  local Scaled = nn.Module:extend("Scaled")
  function Scaled:init() self.fc = nn.Linear(6, 6) end
  function Scaled:forward(x) return self.fc(x) * scale end
  --- Stages of which the one with this number uses what is in none.
  local function stages_of(number)
    local list = {}
    for i = 1, ranks do list[i] = (i == number and Scaled() or nn.Linear(6, 6)):double() end
    return list
  end
  local function mean(y) return y:square():mean() end
  local function refused_by(stage, what, stages, loss)
    local pipe = mh.pipeline(stages, {mesh = line, micros = 2})
    testing.assert_error(function() pipe:train_step(samples, loss) end,
      ("train_step: stage %d, micro-batch 0: %s uses a tensor that requires a gradient and is not a parameter of the "
          .. "stage"):format(stage, what))
    testing.assert_equal(#pipe:infer_step(samples, loss), 2)
  end
  local last, first = ranks - 1, stages_of()
  refused_by(last, "the loss", stages_of(), function(y) return mean(y * scale) end)
  -- the first stage's alone
  refused_by(last, "the loss", first, function(y) return mean(y:matmul(first[1].weight)) end)
  refused_by(0, "the stage", stages_of(1), mean)
  refused_by(last, "the stage", stages_of(ranks), mean)

  -- On a pipeline of one rank all is trained; so are parameters of the last stage that the loss uses.
  local alone = mh.pipeline(stages_of(1), {mesh = mh.init_device_mesh(mh.device(), {1, ranks}, {"pp", "dp"}),
      micros = 2})
  alone:train_step(samples, mean)
  testing.assert_equal(scale.grad:abs():sum():item() > 0, true)
  local whole = stages_of()
  mh.pipeline(whole, {mesh = line, micros = 2}):train_step(samples,
      function(y) return mean(y:matmul(whole[ranks].weight) * scale:detach()) end)
end

function tests.test_N36_what_nobody_would_sum_is_refused()
  local mine = random(mesh.rank + 1, {2, 6})
  local w = random(1, {6, 6}):requires_grad_()
  local net = mh.replicate(back(), {mesh = mesh})
  refused(function() net(mine:matmul(w)) end, "requires a gradient, is not a parameter, and is the same on all ranks")
  local apart = random(mesh.rank + 1, {6, 6}):requires_grad_()
  net(mine:matmul(apart)):sum():backward()
  refused(function() optim.SGD({apart}, {lr = 0.1}):step() end, "is a plain tensor that is in no module")
  local other = nn.Parameter(random(mesh.rank, {6, 6}))
  refused(function() net(mine:matmul(other)) end,
      "what the block was computed from, a plain weight, is not the same on all ranks")

  local scale = nn.Parameter(mh.ones({6}, kF64))
  local strength = scale * 2
  refused(function() (net(mine * strength):sum() + strength:sum()):backward() end,
      "is combined with ShardTensors, where plain tensors are the same")
  refused(function() mh.distribute_tensor(mine * scale, mesh, {mh.Shard(0)}) end, "alone would have their gradients")
  refused(function() mh.local_batch(scale, mesh) end, "this is a parameter, the same on all ranks")

  local pipe = mh.pipeline(nn.Sequential(nn.Linear(6, 4):double(), nn.Linear(4, 2):double()), {
    mesh = mh.init_device_mesh(mh.device(), {ranks // 2, 2}, {"dp", "pp"}), micros = 1})
  local sample = {random(1, {2, 6}), extra = {random(1, {2, 6}) * scale}}
  refused(function() pipe:train_step({sample}, function(y) return y:sum() end) end,
      "sample 1 was computed from tensors that require gradients")
end

return tests
