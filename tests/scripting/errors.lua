-- SPDX-License-Identifier: Apache-2.0
-- Wrong calls name the operator, what was passed, what it takes, and the script's line.
local mh = require "moonhalo"
local t = mh.testing

local tests = {}

local function line_of(message) return tonumber(message:match("errors%.lua:(%d+): ")) end

function tests.test_no_overload_fits()
  local x = mh.ones({2, 3})
  local cases = {
    {function() mh.matmul(x, "a") end,
     {"matmul: no overload fits", "matmul(Tensor float32 [2, 3], 'a')", "aten::matmul(Tensor self, Tensor other)",
      "argument 'other' wants Tensor, got 'a'"}},
    {function() x:sum{dims = 0} end, {"has no argument 'dims'; did you mean 'dim'?"}},
    {function() x:sum(0, 1, 2, 3) end, {"sum: no overload fits"}},
    {function() mh.zeros() end, {"argument 'size' is missing"}},
    {function() mh.zeros({2}, {dtype = "flaot"}) end, {"argument 'dtype' wants ScalarType?, got 'flaot'; did you mean 'float'"}},
    {function() x:view({1.5}) end, {"view", "{1.5}"}},
    {function() mh.cat(x) end, {"argument 'tensors' wants Tensor[]"}},
    {function() x:softmax() end, {"argument 'dim' is missing"}},
    {function() x:sum(0, {dim = 0}) end, {"argument 'dim' is given twice"}},
    {function() mh.relu(nil) end, {"argument 'self'"}},
    {function() mh.relu() end, {"argument 'self' is missing"}},
    {function() mh.zeros({2}, {requires_grad = 1}) end, {"argument 'requires_grad' wants bool"}},
    {function() mh.add(x, x, {1, alpha = 2}) end, {"mixes a list and options"}},
  }
  for _, case in ipairs(cases) do
    local message
    for _, text in ipairs(case[2]) do message = t.assert_error(case[1], text) end
    assert(line_of(message), "no script line in: " .. message)
  end
end

function tests.test_a_failing_kernel_names_the_call()
  local message = t.assert_error(function() mh.ones({2, 3}):mm(mh.ones({2, 3})) end, "2x3")
  assert(message:find("call  mm(Tensor float32 [2, 3], Tensor float32 [2, 3])", 1, true), message)
  assert(not message:find("Exception raised from", 1, true), message)
  assert(not message:find("libtorch", 1, true), message)
end

function tests.test_the_line_is_the_callers()
  local function fails() return mh.matmul(1, 2) end
  local ok, message = pcall(fails)
  t.assert_equal(ok, false)
  local here = debug.getinfo(1, "l").currentline
  t.assert_equal(line_of(message), here - 3)
end

function tests.test_unknown_names()
  t.assert_error(function() return mh.matmull end, "no function or operator 'matmull'; did you mean 'matmul'?")
  t.assert_error(function() return mh.zzzzqqq end, "mh: no function or operator 'zzzzqqq'")
  t.assert_error(function() return mh.ones(1):reluu() end, "no attribute, method or operator 'reluu'; did you mean 'relu'")
  t.assert_error(function() return mh.ones(1).shap end, "did you mean 'shape'?")
  t.assert_error(function() mh.ones(1).shape = 3 end, "attribute 'shape' cannot be set")
  t.assert_error(function() mh.ones(1).sum(3) end, "sum")
  t.assert_error(function() mh.Generator{sed = 1} end, "unknown option 'sed'; did you mean 'seed'?")
  t.assert_error(function() return mh.Generator().foo end, "Generator: no attribute or method 'foo'")
end

function tests.test_wrong_self()
  local x = mh.ones(2)
  t.assert_error(function() x.item() end, "tensor")
  t.assert_error(function() x.item(3) end, "item")
end

function tests.test_modules()
  assert(require "moonhalo" == mh)
  assert(require "moonhalo.testing" == t)
  t.assert_error(function() require "moonhalo.no_such_file" end, "no embedded file 'no_such_file.lua'")
end

function tests.test_errors_survive_coroutines()
  local co = coroutine.create(function()
    coroutine.yield(1)
    mh.ones(2):mm(mh.ones(2))
  end)
  t.assert_equal({coroutine.resume(co)}, {true, 1})
  local ok, message = coroutine.resume(co)
  t.assert_equal(ok, false)
  assert(line_of(message), message)
end

function tests.test_assertions_fail_when_they_should()
  local a = mh.ones(2)
  t.assert_error(function() t.assert_close(a, mh.zeros(2)) end, "2 of 2 elements differ, by at most 1.0")
  t.assert_error(function() t.assert_close(a, mh.ones(3)) end, "shapes differ")
  t.assert_error(function() t.assert_close(a, a:double()) end, "dtypes differ")
  t.assert_error(function() t.assert_close(a, a, {rtl = 1}) end, "unknown option 'rtl'")
  t.assert_error(function() t.assert_close(mh.tensor{mh.nan}, mh.tensor{mh.nan}) end, "1 of 1")
  t.assert_close(mh.tensor{mh.nan}, mh.tensor{mh.nan}, {equal_nan = true})
  t.assert_error(function() t.assert_equal({1, {2}}, {1, {3}}) end, "expected  {1, {3}}")
  t.assert_error(function() t.assert_equal({1}, {1, 2}) end, "values differ")
  t.assert_error(function() t.assert_error(function() end, "x") end, "no error")
  t.assert_error(function() t.assert_error(function() error("y") end, "x") end, "another error")
end

return tests
