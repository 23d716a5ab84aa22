-- SPDX-License-Identifier: Apache-2.0
-- Y16: mh.Function, derivatives written in Lua, and mh.gradcheck, on plain tensors and uneven blocks.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local kF64 = {dtype = "float64"}
local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
local tests = {}

local function draw(seed, shape)
  mh.manual_seed(seed)
  return mh.randn(shape or {7, 2}, kF64)
end

--- The field, plain and cut.
local function each_cut(x, fn)
  for _, placement in ipairs {false, mh.Shard(0), mh.Shard(0, {4, 0, 3}), mh.Shard(1), mh.Replicate()} do
    fn(placement and mh.distribute_tensor(x, mesh, {placement}) or x)
  end
end

local Cube = mh.Function{
  name = "Cube",
  forward = function(ctx, x)
    ctx:save(x)
    return x ^ 3
  end,
  backward = function(ctx, g)
    local x = ctx:saved()
    return g * x ^ 2 * 3
  end,
}

--- Two results of two tensors and a number; a saved result.
local Mixed = mh.Function{
  forward = function(ctx, a, factor, b)
    local e = (a * factor):exp()
    ctx:save(e, b)
    ctx.factor = factor
    return e, (a * 0 + b * b):sum(0)
  end,
  backward = function(ctx, g_e, g_sum)
    local e, b = ctx:saved()
    local ga, gb
    if g_e then ga = g_e * e * ctx.factor end
    if g_sum then gb = (b * 0 + 2 * b) * g_sum end
    return ga, nil, gb
  end,
}

function tests.test_Y16_values_and_derivatives()
  local x, g = draw(1), draw(2)
  each_cut(x, function(cut)
    cut = cut:detach():requires_grad_(true)
    local y = Cube(cut * 2)
    testing.assert_close(y:detach():full_tensor(), (x * 2) ^ 3)
    y:backward(cut:is_shard_tensor() and mh.distribute_tensor(g, mesh, cut.placements) or g)
    testing.assert_close(cut.grad:full_tensor(), g * (x * 2) ^ 2 * 6)
    -- Second derivatives go through backward itself.
    local first = mh.grad({Cube(cut):sum()}, {cut}, {create_graph = true})
    testing.assert_close(first:detach():full_tensor(), x ^ 2 * 3)
    local second = mh.grad({first:sum()}, {cut})
    testing.assert_close(second:full_tensor(), x * 6)
  end)
end

function tests.test_Y16_several_results_and_other_arguments()
  local a, b = draw(1), draw(2)
  each_cut(a, function(cut)
    local ca = cut:detach():requires_grad_(true)
    local cb = (cut:is_shard_tensor() and mh.distribute_tensor(b, mesh, cut.placements) or b):detach()
        :requires_grad_(true)
    local e, s = Mixed(ca, 0.5, cb)
    local loss = e:sum() + (s * s):sum()
    loss:backward()
    testing.assert_close(ca.grad:full_tensor(), (a * 0.5):exp() * 0.5)
    testing.assert_close(cb.grad:full_tensor(), b * 4 * (b * b):sum(0))
    -- One result alone: the gradient of the other is nil.
    ca.grad, cb.grad = nil, nil
    local only = Mixed(ca, 0.5, cb)
    only:sum():backward()
    testing.assert_close(ca.grad:full_tensor(), (a * 0.5):exp() * 0.5)
    assert(cb.grad == nil)
    mh.gradcheck(function(p, q) return Mixed(p, 0.5, q) end, {ca, cb}, {second = true})
  end)
end

function tests.test_Y16_gradcheck_finds_a_wrong_derivative()
  local Wrong = mh.Function{
    forward = function(ctx, x)
      ctx:save(x)
      return x:sin()
    end,
    backward = function(ctx, g) return g * ctx:saved():cos() * 1.01 end,
  }
  each_cut(draw(3), function(cut)
    cut = cut:detach():requires_grad_(true)
    testing.assert_error(function() mh.gradcheck(Wrong, {cut}) end,
        "the first derivative by element 0 of input 1 is wrong")
    assert(mh.gradcheck(Cube, {cut}, {second = true}))
    assert(mh.gradcheck(mh.tanh, {cut}, {second = true}))
  end)
  -- Right at first, wrong in the second: backward hides x from the graph.
  local Once = mh.Function{
    forward = function(ctx, x)
      ctx:save(x)
      return x ^ 3
    end,
    backward = function(ctx, g) return g * ctx:saved():detach() ^ 2 * 3 end,
  }
  local x = draw(3):requires_grad_(true)
  assert(mh.gradcheck(Once, {x}))
  testing.assert_error(function() mh.gradcheck(Once, {x}, {second = true}) end, "the second derivative by element")
end

function tests.test_Y16_results_without_derivative()
  local Rank = mh.Function{
    forward = function(ctx, x)
      local sorted, index = x:sort(0)
      local above = x * 2
      ctx:non_differentiable(above)
      return sorted, index, above
    end,
    backward = function(_, g) return g * 0 end,
  }
  local x = draw(4):requires_grad_(true)
  local sorted, index, above = Rank(x)
  assert(sorted.requires_grad and not index.requires_grad and not above.requires_grad)
  assert(not Rank(draw(4)).requires_grad, "inputs without gradients give results without")
  assert(not mh.no_grad(Rank, x).requires_grad)
end

function tests.test_Y16_memory_of_calls_is_freed()
  local freed = setmetatable({}, {__mode = "v"})
  for i = 1, 20 do
    local x = draw(5):requires_grad_(true)
    local kept = {}
    freed[i] = kept
    local Holding = mh.Function{
      forward = function(ctx, a)
        ctx.kept, ctx.self = kept, ctx
        local y = a:exp()
        ctx:save(y)
        return y
      end,
      backward = function(ctx, g) return g * ctx:saved() end,
    }
    local y = Holding(x)
    if i % 2 == 0 then y:sum():backward() end
  end
  for _ = 1, 3 do collectgarbage() end
  local left = 0
  for _ in pairs(freed) do left = left + 1 end
  assert(left <= 1, left .. " of 20 calls are still held")
end

function tests.test_Y16_mistakes()
  local x = draw(6):requires_grad_(true)
  local function with(forward, backward)
    local fn = mh.Function{name = "Mine", forward = forward, backward = backward}
    return function() fn(x):sum():backward() end
  end
  local function id(_, a) return a * 1 end
  local cases = {
    {function() mh.Function(3) end, "Function: expected {forward"},
    {function() mh.Function{forward = id} end, "Function: backward is nil, expected a function"},
    {function() mh.Function{forward = id, backwards = id} end, "unknown option 'backwards'; did you mean 'backward'?"},
    {with(function() end, id), "Mine: forward gives nothing, expected a tensor"},
    {with(function() return 3 end, id), "Mine: result 1 of forward is 3, expected a tensor"},
    {with(id, function() return 3 end), "Mine: gradient 1 of backward is 3, expected a tensor or nil"},
    {with(id, function(_, g) return g, g end), "Mine: backward gives 2 gradients for 1 inputs"},
    {with(id, function(_, g) return g:sum(0, true):narrow(1, 0, 2) end), "shape"},
    {with(id, function() error("mine") end), "mine"},
    {with(function(ctx, a) return a * ctx:saved() end, id), "Function: saved: it is for backward"},
    {function() mh.gradcheck(mh.sin, {draw(1)}) end, "gradcheck: no input requires a gradient"},
    {function() mh.gradcheck(mh.sin, {x:float():detach():requires_grad_(true)}) end, "whose differences are too rough"},
  }
  for _, case in ipairs(cases) do testing.assert_error(case[1], case[2]) end
end

return tests
