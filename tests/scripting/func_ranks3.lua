-- SPDX-License-Identifier: Apache-2.0
-- Y16: mh.func, derivatives of functions: against formulas on plain tensors, and equal on blocks.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local kF64 = {dtype = "float64"}
local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
local func = mh.func
local tests = {}

local function vector() return mh.tensor({0.5, -1.0, 2.0, 1.5, -0.25}, kF64) end

--- The vector, plain and cut.
local function each_cut(fn)
  for _, placement in ipairs {false, mh.Shard(0), mh.Shard(0, {4, 0, 1}), mh.Replicate()} do
    fn(placement and mh.distribute_tensor(vector(), mesh, {placement}) or vector())
  end
end

local function close(a, b) testing.assert_close(a:full_tensor(), b, {rtol = 1e-12, atol = 1e-13}) end

function tests.test_Y16_products_with_jacobians()
  local x, v, w = vector(), mh.arange(1, 6, kF64), mh.arange(2, 7, kF64)
  each_cut(function(cut)
    local y, products = func.vjp(function(a, b) return a:sin() * b end, cut, cut)
    close(y, x:sin() * x)
    assert(not y.requires_grad, "the result has no graph of its own")
    local first, second = products(v)
    close(first, v * x:cos() * x)
    close(second, v * x:sin())
    local value, product = func.jvp(function(a, b) return a:sin() * b end, {cut, cut}, {v, w})
    close(value, x:sin() * x)
    close(product, x:cos() * x * v + x:sin() * w)
    local _, constant = func.jvp(function(a) return a * 0 + 1 end, {cut}, {v})
    close(constant, x * 0)
  end)
end

function tests.test_Y16_gradients_jacobians_hessians()
  local x = vector()
  local function rosenbrock(a)
    local n = a:size(0)
    local head, rest = a:narrow(0, 0, n - 1), a:narrow(0, 1, n - 1)
    return ((rest - head * head) ^ 2 * 100 + (1 - head) ^ 2):sum()
  end
  each_cut(function(cut)
    local g, value = func.grad_and_value(rosenbrock)(cut)
    local n = 5
    local at, slope, total = x:tolist(), {}, 0
    local second = {}
    for i = 1, n do
      slope[i], second[i] = 0, {0, 0, 0, 0, 0}
    end
    for i = 1, n - 1 do
      local d = at[i + 1] - at[i] ^ 2
      total = total + 100 * d * d + (1 - at[i]) ^ 2
      slope[i] = slope[i] - 400 * d * at[i] - 2 * (1 - at[i])
      slope[i + 1] = slope[i + 1] + 200 * d
      second[i][i] = second[i][i] - 400 * (at[i + 1] - 3 * at[i] ^ 2) + 2
      second[i + 1][i + 1] = second[i + 1][i + 1] + 200
      second[i][i + 1] = second[i][i + 1] - 400 * at[i]
      second[i + 1][i] = second[i + 1][i] - 400 * at[i]
    end
    close(value, mh.full({}, total, kF64))
    close(g, mh.tensor(slope, kF64))
    close(func.grad(rosenbrock)(cut), mh.tensor(slope, kF64))
    close(func.hessian(rosenbrock, cut), mh.tensor(second, kF64))
    -- The Jacobian of the gradient is the Hessian.
    close(func.jacobian(func.grad(rosenbrock), cut), mh.tensor(second, kF64))
    close(func.jacobian(function(a) return mh.outer(a, a):narrow(1, 0, 2) end, cut), (function()
      local expected = mh.zeros({n, 2, n}, kF64)
      for i = 0, n - 1 do
        for j = 0, 1 do
          expected[("%d, %d, %d"):format(i, j, i)] = expected[("%d, %d, %d"):format(i, j, i)] + at[j + 1]
          expected[("%d, %d, %d"):format(i, j, j)] = expected[("%d, %d, %d"):format(i, j, j)] + at[i + 1]
        end
      end
      return expected
    end)())
  end)
end

function tests.test_Y16_functional_call()
  mh.manual_seed(1)
  local net = mh.nn.Sequential(mh.nn.Linear(3, 2), mh.nn.BatchNorm1d(2)):double():eval()
  local x = mh.randn({4, 3}, kF64)
  local before = net(x)
  local weight = mh.randn({2, 3}, kF64):requires_grad_(true)
  local y = func.functional_call(net, {["0.weight"] = weight, ["1.running_mean"] = mh.ones({2}, kF64)}, x)
  local hidden = x:matmul(weight:t()) + net:get_parameter("0.bias")
  testing.assert_close(y, (hidden - 1) / math.sqrt(1 + 1e-5))
  y:sum():backward()
  assert(weight.grad, "gradients go to the tensor that was given")
  assert(net:get_parameter("0.weight").grad == nil)
  testing.assert_equal(net(x):detach(), before:detach())
  testing.assert_error(function() func.functional_call(net, {["0.weight"] = weight}, x:float()) end, "")
  testing.assert_equal(net(x):detach(), before:detach())
  -- The Jacobian by a parameter.
  local function of_weight(w) return func.functional_call(net, {["0.weight"] = w}, x) end
  testing.assert_equal(func.jacobian(of_weight, weight:detach()).shape, {4, 2, 2, 3})
end

function tests.test_Y16_mistakes()
  local x, net = vector(), mh.nn.Linear(2, 1)
  local cases = {
    {function() func.vjp(3, x) end, "vjp: the first argument is 3, expected a function"},
    {function() func.vjp(mh.sin) end, "vjp: no tensor to differentiate by"},
    {function() func.grad(mh.sin)(x) end, "grad_and_value: the function gives 5 elements"},
    {function() func.grad(mh.sum)(x:long()) end, "input 1 is"},
    {function() func.jvp(mh.sin, {x}, {}) end, "jvp: 1 primals, 0 tangents"},
    {function() func.jvp(mh.sin, {x}, {mh.ones{2}}) end, "jvp: the vector has shape [2], the result [5]"},
    {function() func.hessian(mh.sin, x) end, "hessian: the function gives 5 elements, expected one"},
    {function() func.functional_call(net, {wieght = x}, x) end, "net has no 'wieght'; did you mean 'weight'?"},
    {function() func.functional_call(net, {weight = x}, x) end, "'weight' has shape [5], expected [1, 2]"},
    {function() return func.vmap end, "func: no 'vmap'"},
  }
  for _, case in ipairs(cases) do testing.assert_error(case[1], case[2]) end
end

return tests
