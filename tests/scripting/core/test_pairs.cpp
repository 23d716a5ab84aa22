// SPDX-License-Identifier: Apache-2.0
// `pairs` in one order in every state (C1, C2), and math.random in the same way (C3).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moonhalo/scripting/core/lua_random.h"
#include "tests/scripting/several_states.h"

namespace moonhalo::scripting::test_pairs {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

/// Code that gives the keys of a table in the order in which a loop visits them.
std::string visit(const std::string& loop, const std::string& table) {
  return "local seen = {} for k in " + loop + "(" + table +
         ") do seen[#seen + 1] = tostring(k) end return table.concat(seen, ' ')";
}

TEST(Pairs, GoesThroughNumbersThenTextsThenBooleans) {
  struct Case {
    const char* table;
    const char* order;
  };
  const Case cases[] = {
      {"{}", ""},
      {"{7, 8, nil, 9}", "1 2 4"},
      {"{z = 1}", "z"},
      {"{[30] = 1, [20] = 1, [10] = 1}", "10 20 30"},
      {"{b = 1, a = 1, ab = 1, aa = 1, B = 1, ['1'] = 1}", "1 B a aa ab b"},
      {"{loss_b = 1, loss_a = 1, loss = 1, loss_ = 1, loss_ab = 1}", "loss loss_ loss_a loss_ab loss_b"},
      {"{long_name_of_a_field_2 = 1, long_name_of_a_field_1 = 1, long_name_of_a_fiel = 1}",
       "long_name_of_a_fiel long_name_of_a_field_1 long_name_of_a_field_2"},
      {"{['123456789b'] = 1, ['123456789a'] = 1, ['123456788z'] = 1, ['x'] = 1}", "123456788z 123456789a 123456789b x"},
      {"{['\\xc3\\xa4'] = 1, ['\\x7f'] = 1, z = 1}", "z \x7f \xc3\xa4"},
      {"{x = 1, 'a', 'b', [0] = 1, [-1] = 1, [0.5] = 1, [-0.5] = 1, [1.5] = 1, [true] = 1, [false] = 1, ['1'] = 1}",
       "-1 -0.5 0 0.5 1 1.5 2 1 x false true"},
  };
  const std::vector<State> states = several_states();
  for (const Case& one : cases) {
    for (const State& state : states) EXPECT_EQ(run(state.get(), visit("pairs", one.table)), one.order) << one.table;
  }
}

TEST(Pairs, ComparesNumbersAndBytesExactly) {
  const auto state = new_state();
  // Strings by their bytes, NUL and others in the same way; a string comes after its beginnings.
  EXPECT_EQ(
      run(state.get(),
          "local seen = {} for k in pairs{['ab\\0'] = 1, ab = 1, ['ab\\0\\0'] = 1, ['ab\\0x'] = 1, a = 1, [''] = 1} do"
          " seen[#seen + 1] = #k .. (k:sub(-1) == 'x' and 'x' or '') end return table.concat(seen, ' ')"),
      "0 1 2 3 4 4x");
  const std::string numbers =
      "local t = {[math.mininteger] = 1, [math.maxinteger] = 1, [2^63] = 1, [-2^70] = 1, [0] = 1, [math.huge] = 1,"
      " [-math.huge] = 1, [2^53] = 1, [(1 << 53) + 1] = 1, [0.25] = 1, [-0.25] = 1, [math.maxinteger - 1] = 1, [2^70] "
      "= 1}"
      " local last, count = nil, 0 for k in pairs(t) do assert(last == nil or last < k, k) last, count = k, count + 1 "
      "end"
      " return count";
  EXPECT_EQ(run(state.get(), numbers), "13");
}

TEST(Pairs, IsTheSameInEveryStateForFewAndManyKeys) {
  const std::vector<State> states = several_states();
  for (const char* count : {"2", "10", "199", "200", "201", "202", "3000"}) {
    const std::string table = std::string("(function() local t = {} for i = 1, ") + count +
                              " do t['key ' .. i * 7919 % 10007] = i t[i * 0.75] = i end return t end)()";
    EXPECT_THAT(results(states, visit("pairs", table)), SizeIs(1)) << count;
    // Otherwise this test would show nothing.
    if (count != std::string("2")) EXPECT_GT(results(states, visit("rawpairs", table)).size(), 1) << count;
    EXPECT_EQ(
        run(states[0].get(), "local t, seen, count = " + table +
                                 ", {}, 0 for k, v in pairs(t) do assert(t[k] == v and not seen[k]) seen[k] = true"
                                 " count = count + 1 end for k in next, t do assert(seen[k]) end return count == 2 * " +
                                 count),
        "true");
  }
}

TEST(Pairs, EntriesMayBeChangedAndRemovedOnTheWay) {
  const auto state = new_state();
  for (const char* count : {"5", "150", "900"}) {
    const std::string table = std::string("local t = {} for i = 1, ") + count + " do t[('k%04d'):format(i)] = i end ";
    EXPECT_EQ(run(state.get(), table + "local seen = 0 for k, v in pairs(t) do seen = seen + 1 t[k] = nil end"
                                       " assert(next(t) == nil) return seen"),
              count);
    EXPECT_EQ(run(state.get(),
                  table + "local seen = '' for k in pairs(t) do if k == 'k0002' then t.k0003, t.k0001 = nil end"
                          " if k < 'k0006' then seen = seen .. k:sub(-1) end collectgarbage('step') end return seen"),
              "1245");
    EXPECT_EQ(
        run(state.get(), table + "for k in pairs(t) do t.k0004 = 'new' end for k, v in pairs(t) do if v == 'new' then"
                                 " return k end end"),
        "k0004");
    EXPECT_EQ(run(state.get(), table + "for k, v in pairs(t) do t.k0005 = 'new' if k == 'k0005' then return v end end"),
              "new");
  }
  EXPECT_EQ(run(state.get(),
                "local t = {1, 2, 3, 4} local seen = 0 for i in pairs(t) do seen = seen + i t[i + 1] = nil end"
                " return seen"),
            "4");
}

TEST(Pairs, IsOtherwiseLuas) {
  const auto state = new_state();
  EXPECT_EQ(run(state.get(),
                "for k, v in pairs(setmetatable({b = 1, a = 2}, {__pairs = function(t) return function(_, k)"
                " if not k then return 'mine', t end end, t, nil end})) do return k .. v.a end"),
            "mine2");
  EXPECT_EQ(run(state.get(),
                "local step = coroutine.wrap(function() for k in pairs(setmetatable({}, {__pairs = function()"
                " coroutine.yield('waits') return next, {k = 1} end})) do coroutine.yield(k) end end)"
                " return step() .. step()"),
            "waitsk");
  EXPECT_EQ(run(state.get(), "local nothing local n = 0\nfor k in pairs(nothing) do n = 1 end"),
            "script.lua:2: bad argument #1 to 'pairs' (table expected, got nil)");
  EXPECT_THAT(run(state.get(), "pairs()"), HasSubstr("bad argument #1 to 'pairs' (table expected, got no value)"));
  EXPECT_EQ(run(state.get(),
                "local f, s, k = pairs{b = 1, a = 2} local k1 = f(s, k) local k2 = f(s, k1)"
                " return k1 .. k2 .. tostring(f(s, k2))"),
            "abnil");
  EXPECT_EQ(run(state.get(),
                "local t = {b = 1, a = 1} local seen = '' for k in pairs(t) do for l in pairs(t) do"
                " seen = seen .. k .. l .. ' ' end end return seen"),
            "aa ab ba bb ");
  EXPECT_EQ(run(state.get(), "return rawpairs({}) == next and pairs{1, 2} == next"), "true");
}

TEST(Pairs, KeysOfOtherTypesComeLast) {
  const auto state = new_state();
  EXPECT_EQ(run(state.get(),
                "local seen = '' for k in pairs{[print] = 1, [{}] = 1, [true] = 1, x = 1, [io.stdout] = 1, 1} do"
                " seen = seen .. type(k):sub(1, 1) end return seen:sub(1, 3) .. #seen"),
            "nsb6");
}

TEST(Pairs, AStateThatAHostOpensTwiceKeepsLuasOwn) {
  const auto state = new_state();
  open_moonhalo(state.get());
  EXPECT_EQ(run(state.get(), "return rawpairs({}) == next and rawpairs ~= pairs"), "true");
}

TEST(LuaRandom, IsAlikeInEveryStateAndFollowsTheSeed) {
  const std::vector<State> states = several_states();
  const std::string draw =
      " local drawn = {} for i = 1, 8 do drawn[i] = math.random(0, 999) end return table.concat(drawn, ' ')";
  std::set<std::string> sequences;
  for (const char* seed : {"", "require('moonhalo').manual_seed(7)", "require('moonhalo').manual_seed(8)",
                           "math.randomseed(7)", "math.randomseed()", "math.randomseed()"}) {
    const std::set<std::string> drawn = results(states, seed + draw);
    ASSERT_THAT(drawn, SizeIs(1)) << seed;
    sequences.insert(*drawn.begin());
  }
  EXPECT_THAT(sequences, SizeIs(5));  // manual_seed(7) and math.randomseed(7) are the same
  EXPECT_EQ(results(states, "require('moonhalo').manual_seed(7)" + draw), results(states, "math.randomseed(7)" + draw));

  const auto first = new_state(), second = new_state();
  set_lua_entropy(first.get(), 1);
  set_lua_entropy(second.get(), 2);
  EXPECT_NE(run(first.get(), "math.randomseed()" + draw), run(second.get(), "math.randomseed()" + draw));
}

}  // namespace
}  // namespace moonhalo::scripting::test_pairs
