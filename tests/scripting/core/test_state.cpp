// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/binding.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "moonhalo/scripting/program/report.h"

namespace moonhalo::scripting::test_state {

struct Counter {
  static inline int alive = 0;
  int value = 3;
  Counter() { ++alive; }
  ~Counter() { --alive; }
};

}  // namespace moonhalo::scripting::test_state

template <>
inline constexpr const char* moonhalo::scripting::kObjectName<moonhalo::scripting::test_state::Counter> = "Counter";

namespace moonhalo::scripting::test_state {
namespace {

using ::testing::HasSubstr;

std::string run(lua_State* lua, const std::string& code, const char* chunk = "@test.lua") {
  lua_settop(lua, 0);
  if (luaL_loadbufferx(lua, code.data(), code.size(), chunk, "t") != LUA_OK) return lua_tostring(lua, -1);
  try {
    call_traced(lua, 0, 1);
  } catch (const LuaError& error) {
    return error.what();
  }
  return luaL_tolstring(lua, -1, nullptr);
}

int fail_in_cpp(lua_State*) { TORCH_CHECK_VALUE(false, "op: seven is too many"); }

int call_through(lua_State* lua) {
  const Counter on_the_stack;
  lua_call(lua, 0, 0);
  return 0;
}

int counter_value(lua_State* lua) {
  push(lua, check_object<Counter>(lua, 1)->value);
  return 1;
}

int read_size(lua_State* lua) {
  const Options options(lua, 1, "call", {"size", "name"});
  push(lua, options.get_int("size", 7));
  return 1;
}

TEST(State, ACppErrorBecomesALuaErrorAtTheScriptsLine) {
  const auto state = new_state();
  lua_register(state.get(), "fail", guard<fail_in_cpp>);

  EXPECT_EQ(run(state.get(), "\n\nfail()"), "test.lua:3: op: seven is too many");
  EXPECT_EQ(run(state.get(), "\nreturn select(2, pcall(fail))"), "test.lua:2: op: seven is too many");
  EXPECT_EQ(run(state.get(), "return fail()"), "test.lua:1: op: seven is too many");
}

TEST(State, LinesOfEmbeddedFilesAreNotTheUsers) {
  const auto state = new_state();
  lua_register(state.get(), "fail", guard<fail_in_cpp>);
  run(state.get(), "function inner() fail() end", "=moonhalo.nn");

  EXPECT_EQ(run(state.get(), "\n\n\ninner()"), "test.lua:4: op: seven is too many");
}

TEST(State, ALuaErrorThroughCppKeepsItsMessageAndDestroysWhatIsOnTheStack) {
  const auto state = new_state();
  lua_register(state.get(), "through", guard<call_through>);

  EXPECT_EQ(run(state.get(), "through(function()\n error('inner') end)"), "test.lua:2: inner");
  EXPECT_EQ(Counter::alive, 0);
}

TEST(State, ObjectsLiveAsLongAsLuaHoldsThem) {
  {
    const auto state = new_state();
    static const luaL_Reg methods[] = {{"value", guard<counter_value>}, {nullptr, nullptr}};
    define_object<Counter>(state.get(), methods);
    push_object(state.get(), std::make_shared<Counter>());
    lua_setglobal(state.get(), "c");

    EXPECT_EQ(run(state.get(), "return c:value()"), "3");
    EXPECT_THAT(run(state.get(), "return c.valeu"),
                HasSubstr("Counter: no attribute or method 'valeu'; did you mean 'value'?"));
    EXPECT_THAT(
        run(state.get(), "return c.value(3)"),
        HasSubstr("value: called on 3, which is not a counter\n  fix   write a colon, not a dot: counter:value(...)"));
    EXPECT_EQ(Counter::alive, 1);
  }
  EXPECT_EQ(Counter::alive, 0);
}

TEST(State, ReferencesMayOutliveTheStateAndDieElsewhere) {
  Reference outlives;
  {
    const auto state = new_state();
    run(state.get(), "return function() end");
    outlives = Reference(state.get(), 1);
    Reference elsewhere(state.get(), 1);
    std::thread([moved = std::move(elsewhere)]() mutable {
      EXPECT_THROW(moved.push(), LuaError);
      moved = Reference();
    }).join();
    outlives.push();
    EXPECT_TRUE(lua_isfunction(state.get(), -1));
  }
  EXPECT_THROW(outlives.push(), LuaError);
}

TEST(State, OptionsRefuseUnknownKeys) {
  const auto state = new_state();
  lua_register(state.get(), "call", guard<read_size>);

  EXPECT_EQ(run(state.get(), "return call()"), "7");
  EXPECT_EQ(run(state.get(), "return call{size = 2.0}"), "2");
  EXPECT_EQ(run(state.get(), "local r = call{sise = 2} return r"),
            "test.lua:1: call: unknown option 'sise'; did you mean 'size'?\n  have  size, name");
  EXPECT_THAT(run(state.get(), "local r = call{size = 'x'} return r"),
              HasSubstr("option 'size' has a value of the wrong type: 'x'"));
}

TEST(State, GeneratorsOfARankFollowItsSeedAlone) {
  const auto first = new_state(), second = new_state();
  const std::string draw = "local mh = require 'moonhalo'; mh.manual_seed(5); return mh.rand(2):sum():item()";

  const std::string drawn = run(first.get(), draw);
  run(second.get(), "require 'moonhalo'.rand(100)");
  EXPECT_EQ(run(second.get(), draw), drawn);
}

// A host's function without a guard: its exception passes through Lua's frames.
TEST(HostFunctions, ExceptionsThatTheyLetOutKeepTheirText) {
  const auto state = new_state();
  lua_State* lua = state.get();
  lua_register(lua, "measure", [](lua_State*) -> int { throw std::runtime_error("the valve is stuck"); });
  const auto message = [&](const std::string& script) -> std::string {
    EXPECT_EQ(luaL_loadbuffer(lua, script.data(), script.size(), "=host.lua"), LUA_OK);
    try {
      call_traced(lua, 0, 0);
    } catch (const LuaError& error) {
      return error.what();
    }
    return "";
  };

  EXPECT_EQ(message("\nmeasure()"), "host.lua:2: the valve is stuck");
  EXPECT_EQ(message("error(select(2, pcall(measure)), 0)"), "host.lua:1: the valve is stuck");
  EXPECT_EQ(message("error(select(2, xpcall(measure, function(text) return 'x: ' .. text end)), 0)"),
            "x: host.lua:1: the valve is stuck");
  EXPECT_EQ(message("error(select(2, coroutine.resume(coroutine.create(function() measure() end))), 0)"),
            "host.lua:1: the valve is stuck");
  EXPECT_EQ(message("for i = 1, 1000 do pcall(measure) end error('still sound', 0)"), "still sound");
}

TEST(Report, NamesRanksThatSayTheSameOnce) {
  ErrorReport report;
  report.add(2, LuaError("x.lua:1: wrong"), false);
  report.add(0, LuaError("x.lua:1: wrong"), false);
  report.add(1, LuaError("x.lua:1: wrong"), false);
  report.add(4, LuaError("x.lua:2: other"), false);
  report.add(3, LuaError("rank 2 failed"), true);

  EXPECT_EQ(report.text(5), "ranks 0-2: x.lua:1: wrong\nrank 4: x.lua:2: other\n");
  EXPECT_FALSE(report.only_secondary());
}

}  // namespace
}  // namespace moonhalo::scripting::test_state
