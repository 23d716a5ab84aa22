-- SPDX-License-Identifier: Apache-2.0
-- Strings of tables and of integers without a sign; comparing two tensors.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local text_of = require "moonhalo.internal.table_text"

local tests = {}

function tests.test_tables_show_their_contents_with_sorted_keys()
  testing.assert_equal(text_of{}, "{}")
  testing.assert_equal(text_of{1, 2.5, "a", true}, '{1, 2.5, "a", true}')
  testing.assert_equal(text_of{z = 1, a = {b = "x"}, [3] = false, ["two words"] = print},
      '{[3] = false, a = {b = "x"}, ["two words"] = function, z = 1}')
  testing.assert_equal(text_of{7, 8, n = 2}, "{7, 8, n = 2}")
  testing.assert_equal(text_of{x = mh.ones{2, 3}, net = mh.nn.Linear(2, 1)},
      "{net = Linear, x = Tensor float32 [2, 3]}")
  testing.assert_equal(text_of{"line\nline"}, '{"line\\nline"}')
end

function tests.test_long_and_deep_tables()
  local long = {}
  for i = 1, 30 do long[i] = ("word %d"):format(i) end
  local lines = text_of(long)
  testing.assert_equal({lines:sub(1, 16), lines:sub(-14)}, {'{\n  "word 1",\n  ', '\n  "word 30"\n}'})
  for i = 1, 200 do long[i] = i end
  assert(text_of(long):find("... 150 more", 1, true))
  local own = {name = "own"}
  own.own = own
  testing.assert_equal(text_of(own), '{name = "own", own = {...}}')
  testing.assert_equal(text_of{{{{{{{{1}}}}}}}}, "{{{{{{{...}}}}}}}")
end

function tests.test_what_moved_can_be_read()
  local stats = text_of(mh.comm_stats())
  assert(stats:find("by_kind = ", 1, true) and not stats:find("0x", 1, true), stats)
end

function tests.test_integers_without_a_sign()
  local large = mh.tensor{-1, 7}:view("uint64")
  testing.assert_equal(tostring(large), "tensor([18446744073709551615,                    7], dtype=uint64)")
  testing.assert_equal(large[1]:item(), 7)
  testing.assert_error(function() return large[0]:item() end,
      "18446744073709551615 is larger than Lua's integers, which end at 9223372036854775807\n" ..
          "  fix   x:view(\"int64\"):item()")
  testing.assert_equal(large[0]:view("int64"):item(), -1)
  testing.assert_equal(large:view("int64"):tolist(), {-1, 7})
  testing.assert_error(function() return large:tolist() end, "18446744073709551615 is larger than Lua's integers")
  assert(tostring(mh.hash_tensor(mh.arange(9))):find("^tensor%(%d+, dtype=uint64%)"))
end

function tests.test_two_tensors_are_not_compared_by_one_sign()
  local a, b = mh.arange(4), mh.arange(4)
  for _, compare in ipairs {function() return a == b end, function() return a ~= b end} do
    testing.assert_error(compare,
        "Tensor: == and ~= of two tensors give one boolean in Lua\n  have  Tensor int64 [4] and Tensor int64 [4]\n" ..
            "  fix   x:eq(y)")
  end
  local same = {a}
  testing.assert_equal({a == same[1], a ~= a, a == nil}, {true, false, false})
  local leaf = mh.ones({2}, {requires_grad = true})
  leaf:sum():backward()
  -- one tensor, handed out twice
  testing.assert_equal({leaf.grad == leaf.grad, leaf.grad:is_same(leaf.grad)}, {true, true})
  testing.assert_equal({a:is_same(a), a:is_same(b), a:equal(b)}, {true, false, true})
  testing.assert_error(function() return a:is_same(3) end, "is_same: bad argument #1, expected a tensor, got 3")
end

function tests.test_a_tensor_is_no_list_to_unpack()
  local w = mh.ones({3}, {requires_grad = true})
  testing.assert_error(function() return table.unpack(mh.grad(w:square():sum(), {w})) end,
      "table.unpack: expected a list, got Tensor float32 [3]\n  fix   mh.grad")
  testing.assert_equal({table.unpack({1, 2, 3}, 2)}, {2, 3})
  testing.assert_error(function() return table.unpack(nil) end, "nil")
end

return tests
