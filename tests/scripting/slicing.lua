-- SPDX-License-Identifier: Apache-2.0
-- x[...] as in PyTorch: integers, slice strings, tensors, lists of these; reading and writing.
local mh = require "moonhalo"
local t = mh.testing

local tests = {}

local function base() return mh.arange(24):view(2, 3, 4) end

function tests.test_reading()
  local x = base()
  local cases = {
    {1, {{12, 13, 14, 15}, {16, 17, 18, 19}, {20, 21, 22, 23}}},
    {-1, {{12, 13, 14, 15}, {16, 17, 18, 19}, {20, 21, 22, 23}}},
    {"0, 1", {4, 5, 6, 7}},
    {"0, :, 2:4", {{2, 3}, {6, 7}, {10, 11}}},
    {"..., 0", {{0, 4, 8}, {12, 16, 20}}},
    {"1, ..., -1", {15, 19, 23}},
    {"0, 0, ::2", {0, 2}},
    {"0, 0, 1::2", {1, 3}},
    {"0, 0, -2:", {2, 3}},
    {"0, 0, :-3", {0}},
    {"0, 0, 1:100", {1, 2, 3}},
    {"0, 0, 3:1", {}},
    {"0,0,0", 0},
    {{0, "1:", mh.tensor{0, 3}}, {{4, 7}, {8, 11}}},
    {{1, 2, {0, 1}}, {20, 21}},
  }
  for i, case in ipairs(cases) do
    local result = x[case[1]]
    local value = result:dim() == 0 and result:item() or result:tolist()
    local ok, message = pcall(t.assert_equal, value, case[2])
    if not ok then error("case " .. i .. ": " .. message, 0) end
  end
end

--- In Python x[0, 2] is an element and x[[0, 2]] are rows; x[{0, 2}] may mean either.
function tests.test_lists_of_integers_are_refused()
  local x = base()
  for _, list in ipairs {{0, 2}, {1}, {-1, 0, 1}, {0.0, 1.0}} do
    local message = t.assert_error(function() return x[list] end,
        "a list of integers may mean one element or several rows")
    assert(message:find('fix   x["', 1, true), message)
    t.assert_error(function() x[list] = 0 end, "a list of integers may mean")
  end
  local message = t.assert_error(function() return x[{0, 2}] end, 'index {0, 2}: a list of integers')
  for code in message:gmatch('x%b[]') do
    assert(mh.is_tensor(load("local mh, x = ...; return " .. code)(mh, mh.ones{3, 3})), code)
  end
  t.assert_equal(x["1, 2"]:tolist(), {20, 21, 22, 23})
  t.assert_equal(x[mh.tensor{1, 0}]:tolist(), x:index_select(0, mh.tensor{1, 0}):tolist())
  t.assert_equal(x[{{1, 0}}]:tolist(), x[mh.tensor{1, 0}]:tolist())
end

function tests.test_shapes_count_from_one()
  local x = base()
  t.assert_error(function() return x.shape[0] end,
      "x.shape[0]: x.shape is a Lua list, which counts from 1\n  fix   x.shape[1] or x:size(0)")
  t.assert_error(function() return x.shape[-1] end, "fix   x.shape[#x.shape] or x:size(-1)")
  t.assert_error(function() return x:size()[-2] end, "fix   x.shape[#x.shape-1] or x:size(-2)")
  t.assert_equal({x.shape[1], x.shape[3], x.shape[4], x.shape[#x.shape - 1], x.shape.rows}, {2, 4, nil, 3})
  t.assert_equal(tostring(x.shape), "{2, 3, 4}")
  local count = 0
  for i, size in ipairs(x.shape) do count = count + i * size end
  t.assert_equal(count, 20)
  t.assert_equal(mh.zeros(x.shape).shape, {2, 3, 4})
  t.assert_equal(mh.zeros(x:sum().shape):dim(), 0)
end

function tests.test_shapes()
  local x = base()
  t.assert_equal(x[":"].shape, {2, 3, 4})
  t.assert_equal(x["..."].shape, {2, 3, 4})
  t.assert_equal(x["None"].shape, {1, 2, 3, 4})
  t.assert_equal(x[":, newaxis, 0"].shape, {2, 1, 4})
  t.assert_equal(x["..., None"].shape, {2, 3, 4, 1})
  t.assert_equal(x["0:0"].shape, {0, 3, 4})
  t.assert_equal(x[mh.tensor{1, 0, 1}].shape, {3, 3, 4})
  t.assert_equal(x[x:gt(20)]:tolist(), {21, 22, 23})
  t.assert_equal(x[{mh.tensor({{true, false, false}, {false, false, true}}), "0:2"}]:tolist(), {{0, 1}, {20, 21}})
end

function tests.test_writing()
  local x = base()
  x["0"] = 0
  t.assert_equal(x[0]:sum():item(), 0)
  x["1, 0, 1:3"] = mh.tensor{-1, -2}
  t.assert_equal(x["1, 0"]:tolist(), {12, -1, -2, 15})
  x["1, :, 0"] = 7
  t.assert_equal(x["1, :, 0"]:tolist(), {7, 7, 7})
  x[0] = mh.ones({3, 4}, {dtype = "int64"})
  t.assert_equal(x[0]:sum():item(), 12)
  x["1, None, 2"] = mh.ones({1, 1, 4}, {dtype = "int64"})
  t.assert_equal(x["1, 2"]:tolist(), {1, 1, 1, 1})
  x["-1, :, 3"] = mh.tensor{30}
  t.assert_equal(x["1, :, 3"]:tolist(), {30, 30, 30})
  x["1, 0, 3"] = 15
  x[x:lt(0)] = 100
  t.assert_equal(x["1, 0"]:tolist(), {7, 100, 100, 15})
  x[mh.tensor{0}] = mh.zeros({1, 3, 4})
  t.assert_equal(x[0]:sum():item(), 0)
end

function tests.test_views_and_gradients()
  local x = base()
  x[1][0]:fill_(5)
  t.assert_equal(x["1, 0"]:tolist(), {5, 5, 5, 5})

  local w = mh.ones({2, 3}, {dtype = "float64", requires_grad = true})
  local y = w * 2
  y["0"] = 0
  y:sum():backward()
  t.assert_close(w.grad, {{0, 0, 0}, {2, 2, 2}})
  w.grad = nil
  w["1, ::2"]:sum():backward()
  t.assert_close(w.grad, {{0, 0, 0}, {1, 0, 1}})
end

function tests.test_errors()
  local x = base()
  t.assert_error(function() return x[2] end, "index 2 is out of range for dimension 0 of size 2")
  t.assert_error(function() return x["0, 3"] end, "index 3 is out of range for dimension 1 of size 3")
  t.assert_error(function() return x["0, 0, 0, 0"] end, "too many indices, 4 for a tensor of 3 dimensions")
  t.assert_error(function() return x["0, a"] end, 'index "0, a": "a" is not an index or a slice')
  t.assert_error(function() return x["::-1"] end, "step -1 is not positive")
  t.assert_error(function() return x["..., ..."] end, 'more than one "..."')
  t.assert_error(function() return x[{"...", "..."}] end, "only once")
  t.assert_error(function() return x[0.5] end, "expected an integer")
  t.assert_error(function() x["0"] = "text" end, "a number or boolean")
  t.assert_error(function() x["0"] = mh.ones(7) end, "a value of shape [7] does not fit the selected shape [3, 4]")
end

return tests
