-- SPDX-License-Identifier: Apache-2.0
-- Tensors as Lua values: attributes, arithmetic, conversion, printing, autograd, lifetime.
local mh = require "moonhalo"
local t = mh.testing

local tests = {}

local f64 = {dtype = "float64"}
local function F(values) return mh.tensor(values, f64) end

function tests.test_tensor_from_lists()
  t.assert_equal(mh.tensor({{1, 2}, {3, 4}}):tolist(), {{1, 2}, {3, 4}})
  t.assert_equal(mh.tensor({1, 2}).dtype, "int64")
  t.assert_equal(mh.tensor({1, 2.5}).dtype, "float32")
  t.assert_equal(mh.tensor({true, false}).dtype, "bool")
  t.assert_equal(mh.tensor(3).shape, {})
  t.assert_equal(mh.tensor(3):item(), 3)
  t.assert_equal(mh.tensor({}).shape, {0})
  t.assert_equal(mh.tensor({{}, {}}).shape, {2, 0})
  t.assert_equal(mh.tensor({2 ^ 53 + 1 | 0}):item(), 9007199254740993 - 1 + 0)
  t.assert_equal(mh.tensor({9007199254740993}):item(), 9007199254740993)
  t.assert_equal(mh.tensor({mh.tensor(1.5), mh.tensor(2.5)}):tolist(), {1.5, 2.5})
  t.assert_error(function() mh.tensor({{1, 2}, {3}}) end, "differ in length")
  t.assert_error(function() mh.tensor({1, "x"}) end, "got 'x'")
  t.assert_error(function() mh.tensor({1}, {dtyp = "int64"}) end, "unknown option 'dtyp'; did you mean 'dtype'?")
end

function tests.test_attributes()
  local x = mh.zeros({2, 3, 4}, {dtype = "float64"})
  t.assert_equal({x.shape, x.dtype, x.device, x.ndim, x.requires_grad, x.is_leaf},
      {{2, 3, 4}, "float64", "cpu", 3, false, true})
  t.assert_equal({x:size(), x:size(-1), x:dim(), x:numel(), #x}, {{2, 3, 4}, 4, 3, 24, 2})
  t.assert_equal({x.mT.shape, x:stride(), x.nbytes, x.itemsize, x.layout}, {{2, 4, 3}, {12, 4, 1}, 192, 8, "strided"})
  t.assert_equal(F{{1, 2}, {3, 4}}.T:tolist(), {{1, 3}, {2, 4}})
  t.assert_equal(x.grad, nil)
  local z = mh.complex(F{1}, F{2})
  t.assert_equal({z.real:item(), z.imag:item(), z.dtype}, {1.0, 2.0, "complex128"})
  x.requires_grad = true
  t.assert_equal(x.requires_grad, true)
  x.grad = mh.ones_like(x)
  t.assert_equal(x.grad:sum():item(), 24.0)
  x.grad = nil
  t.assert_equal(x.grad, nil)
end

function tests.test_arithmetic()
  local a = F{1, 2, -3}
  t.assert_close(a + 1, {2, 3, -2})
  t.assert_close(1 - a, {0, -1, 4})
  t.assert_close(2 * a * a, {2, 8, 18})
  t.assert_close(6 / a, {6, 3, -2})
  t.assert_close(a // 2, {0, 1, -2})
  t.assert_close(a % 2, {1, 0, 1})
  t.assert_close(a ^ 2, {1, 4, 9})
  t.assert_close(2 ^ a, {2, 4, 0.125})
  t.assert_close(-a, {-1, -2, 3})
  t.assert_equal((mh.tensor{6, 5} & 3):tolist(), {2, 1})
  t.assert_equal((~mh.tensor{true, false}):tolist(), {false, true})
  t.assert_equal((mh.tensor{1} << 3):item(), 8)
  t.assert_equal((mh.tensor{1, 2} + 1).dtype, "int64")
  t.assert_equal((mh.tensor{1, 2} + 1.5).dtype, "float32")
  t.assert_equal((F{1} + 1).dtype, "float64")
  t.assert_equal(a == a, true)
  t.assert_error(function() return a == F{1, 2, -3} end, "Tensor: == and ~= of two tensors")
  t.assert_error(function() return a < a end, "x:lt(y)")
  t.assert_error(function() return a + {} end, "a tensor")
  t.assert_error(function() return a + F{1, 2} end, "call  Tensor float64 [3] + Tensor float64 [2]")
end

function tests.test_conversion()
  local x = F{1.7, -2.2}
  t.assert_equal(x:to("int64"):tolist(), {1, -2})
  t.assert_equal({x:float().dtype, x:long().dtype, x:bool().dtype, x:half().dtype},
      {"float32", "int64", "bool", "float16"})
  t.assert_equal(x:to("cpu", "float32").dtype, "float32")
  t.assert_equal(x:to{dtype = mh.bfloat16}.dtype, "bfloat16")
  t.assert_equal(x:to(mh.zeros(1)).dtype, "float32")
  assert(rawequal(x:to("float64"), x))
  assert(not rawequal(x:to("float64", {copy = true}), x))
  t.assert_error(function() x:to("flaot32") end, "did you mean 'float32'?")
  t.assert_error(function() x:item() end, "item: a tensor of 2 elements")
end

function tests.test_printing()
  t.assert_equal(tostring(mh.tensor{{1, 2}, {3, 4}}), "tensor([[1, 2],\n        [3, 4]])")
  t.assert_equal(tostring(F{1.5, -2}), "tensor([ 1.5000, -2.0000], dtype=float64)")
  t.assert_equal(tostring(mh.tensor{1.0, 2.0}), "tensor([1., 2.])")
  t.assert_equal(tostring(mh.tensor{1e-8, 1.0}), "tensor([1.0000e-08, 1.0000e+00])")
  t.assert_equal(tostring(mh.tensor{mh.nan, mh.inf}), "tensor([nan, inf])")
  t.assert_equal(tostring(mh.tensor(2.5)), "tensor(2.5000)")
  t.assert_equal(tostring(mh.zeros({0, 2})), "tensor([], size=[0, 2], dtype=float32)")
  t.assert_equal(tostring(mh.tensor{true}), "tensor([True])")
  t.assert_equal(tostring(mh.ones(2, {requires_grad = true})), "tensor([1., 1.], requires_grad=True)")
  t.assert_equal(tostring(mh.ones(2, {requires_grad = true}) * 1), "tensor([1., 1.], grad_fn=<MulBackward0>)")
  t.assert_equal(tostring(mh.arange(2000)), "tensor([   0,    1,    2,  ..., 1997, 1998, 1999])")
  local large = tostring(mh.zeros({100, 100}))
  t.assert_equal(select(2, large:gsub("\n", "")), 6)
  t.assert_equal(tostring(mh.empty({2}, {device = "meta"})), "tensor(..., size=[2], device='meta')")
end

function tests.test_backward_and_grad()
  local x = mh.tensor({1, 2, 3}, {dtype = "float64", requires_grad = true})
  local y = (x ^ 3):sum()
  y:backward()
  t.assert_close(x.grad, {3, 12, 27})

  local first = mh.grad({(x ^ 3):sum()}, {x}, {create_graph = true})
  local second = mh.grad(first:sum(), x)
  t.assert_close(second, {6, 12, 18})

  local a, b = F{2}:requires_grad_(), F{5}:requires_grad_()
  local ga, gb = mh.grad((a * b):sum(), {a, b})
  t.assert_equal({ga:item(), gb:item()}, {5.0, 2.0})
  local _, unused = mh.grad(a:sum(), {a, b}, {allow_unused = true})
  t.assert_equal(unused, nil)

  local z = (a * 3):sum()
  z:backward(F{10}[0], {retain_graph = true})
  z:backward{gradient = F{10}[0]}
  t.assert_close(a.grad, {60})
  local h = a * 2
  h:retain_grad()
  h:sum():backward()
  t.assert_close(h.grad, {1})
end

function tests.test_grad_modes()
  local x = mh.ones(2, {requires_grad = true})
  t.assert_equal(mh.no_grad(function(k) return (x * k).requires_grad, "second" end, 2), false)
  t.assert_equal(select(2, mh.no_grad(function() return 1, "second" end)), "second")
  t.assert_equal(mh.inference_mode(function() return (x * 2):is_inference() end), true)
  t.assert_equal(mh.no_grad(function() return mh.enable_grad(function() return (x * 2).requires_grad end) end), true)
  t.assert_error(function() mh.no_grad(function() error("inside") end) end, "inside")
  t.assert_equal(mh.is_grad_enabled(), true)
  local y = mh.autocast("bfloat16", function() return mh.matmul(mh.ones(2, 2), mh.ones(2, 2)) end)
  t.assert_equal({y.dtype, mh.matmul(mh.ones(2, 2), mh.ones(2, 2)).dtype}, {"bfloat16", "float32"})
  t.assert_error(function() mh.autocast("float64", print) end,
      "autocast: dtype float64 is not a lower precision\n  fix   use \"bfloat16\" or \"float16\"")
end

--- A weight of several layers: what autocast casts in one use may serve the next, but not beyond a segment.
function tests.test_autocast_around_checkpoints()
  local x = mh.linspace(-1, 1, 12):reshape{3, 4}
  local function gradient(...)
    mh.manual_seed(1)
    local net, y = mh.nn.Linear(4, 4), x
    local layers = {...}
    mh.autocast("bfloat16", function()
      for _, is_checkpointed in ipairs(layers) do y = is_checkpointed and mh.checkpoint(net, y) or net(y) end
    end)
    y:float():square():sum():backward()
    return net.weight.grad
  end
  local expected = gradient(false, false, false)
  for _, layers in ipairs {{true, false, false}, {false, true, false}, {true, true, true}} do
    t.assert_close(gradient(table.unpack(layers)), expected, {rtol = 2e-2, atol = 2e-2})
  end
end

function tests.test_tf32()
  local convolutions, products = mh.is_tf32_allowed()
  t.assert_equal({convolutions, products}, {true, false})  -- LibTorch's defaults
  mh.allow_tf32(false)
  t.assert_equal({mh.is_tf32_allowed()}, {false, false})
  mh.allow_tf32(true)
  t.assert_equal({mh.is_tf32_allowed()}, {true, true})
  t.assert_error(function() mh.allow_tf32("no") end, "allow_tf32: bad argument #1, expected true or false, got 'no'")
  -- As before: it is of the process.
  mh.allow_tf32(products)
end

function tests.test_hooks()
  local x = mh.ones(2, {dtype = "float64", requires_grad = true})
  local seen
  local hook = x:register_hook(function(g) seen = g:clone(); return g * 10 end);
  (x * 3):sum():backward()
  t.assert_close(seen, {3, 3})
  t.assert_close(x.grad, {30, 30})
  hook:remove()
  x.grad = nil;
  (x * 3):sum():backward()
  t.assert_close(x.grad, {3, 3})
  x:register_hook(function() error("from the hook") end)
  local message = t.assert_error(function() x:sum():backward() end, "from the hook")
  assert(message:find("tensor.lua:%d+:"), message)
end

function tests.test_detach_clone_and_data()
  local x = mh.ones(2, {requires_grad = true})
  t.assert_equal({x:detach().requires_grad, x:clone().requires_grad, x.data.requires_grad}, {false, true, false})
  x.data = mh.zeros(2)
  t.assert_equal(x:tolist(), {0, 0})
end

function tests.test_lifetime()
  local x = mh.ones(4)
  x:free()
  t.assert_error(function() return x:sum() end, "sum: the tensor was freed\n  fix   use it before x:free()")
  t.assert_equal(tostring(x), "tensor(freed)")
  local kept
  do
    local y <close> = mh.ones(4)
    kept = y
  end
  t.assert_error(function() return kept.shape end, "the tensor was freed\n  fix   use it before x:free()")
  collectgarbage()
  local before = collectgarbage("count")
  for _ = 1, 200 do local _ = mh.empty({1024, 1024}) end
  assert(collectgarbage("count") - before < 100, "800 MiB of dead tensors were kept")
end

function tests.test_iteration()
  local rows = {}
  for i, row in mh.arange(6):view(3, 2):iter() do rows[i] = row:tolist() end
  t.assert_equal(rows, {[0] = {0, 1}, [1] = {2, 3}, [2] = {4, 5}})
  local count = 0
  for _ in pairs(mh.zeros({5, 1})) do count = count + 1 end
  t.assert_equal(count, 5)
end

return tests
