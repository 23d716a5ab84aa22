// SPDX-License-Identifier: Apache-2.0
// Functions that autograd calls live as long as it may, and no longer, whatever tensors they hold.
#include "moonhalo/scripting/core/held_values.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/program/report.h"
#include "tests/support/live_bytes.h"

namespace moonhalo::scripting::test_held_values {
namespace {

constexpr int64_t kNumbers = 10000, kSteps = 10;

std::string run(lua_State* lua, const std::string& code) {
  lua_settop(lua, 0);
  if (luaL_loadbufferx(lua, code.data(), code.size(), "@test.lua", "t") != LUA_OK) return lua_tostring(lua, -1);
  try {
    call_traced(lua, 0, 1);
  } catch (const LuaError& error) {
    return error.what();
  }
  const std::string text = luaL_tolstring(lua, -1, nullptr);
  lua_settop(lua, 0);
  return text;
}

struct Way {
  const char* name;
  const char* step;  // with a leaf x of kNumbers float64
};

const Way kWays[] = {
    {"of another", "x:register_hook(function(g) return g end); (x * 2):sum():backward()"},
    {"of its own", "x:register_hook(function(g) return x ~= nil and g or g end); (x * 2):sum():backward()"},
    {"without a backward", "x:register_hook(function(g) return x ~= nil and g or g end) local y = (x * 2):sum()"},
    {"never used", "x:register_hook(function(g) return x ~= nil and g or g end)"},
    {"in a table",
     "local kept = {h = x * 2} kept.h:register_hook(function(g) kept.g = g end); (kept.h * kept.h):sum():backward()"},
    {"in a table without a backward", "local kept = {h = x * 2} kept.h:register_hook(function(g) kept.g = g end)"},
    {"two of one tensor",
     "for _ = 1, 2 do x:register_hook(function(g) return x ~= nil and g * 2 or g end) end x:sum():backward()"},
    {"removed", "local h = x:register_hook(function(g) return x ~= nil and g or g end) h.remove() x:sum():backward()"},
    {"the handle is kept by the hook",
     "local h h = x:register_hook(function(g) return h ~= nil and x ~= nil and g or g end) x:sum():backward()"},
    {"created graph",
     "x:register_hook(function(g) return x ~= nil and g or g end) local y = (x * x * x):sum() y:backward{create_graph "
     "= true} x.grad = nil"},
    {"freed by hand", "x:register_hook(function(g) return x ~= nil and g or g end); (x * 2):sum():backward() x:free()"},
    {"checkpoint",
     "local kept = {} kept.y = mh.checkpoint(function(a, t) return (t or kept) and a * 2 end, x, kept) "
     "kept.y:sum():backward()"},
    {"checkpoint without a backward",
     "local kept = {} kept.y = mh.checkpoint(function(a, t) return (t or kept) and a * 2 end, x, kept)"},
    {"checkpoint of two results",
     "local kept = {} kept.y, kept.z = mh.checkpoint(function(a) return kept and a * 2, a * 3 end, x) kept.y = nil"},
    {"checkpoint that captures", "local kept = {} kept.y = mh.checkpoint(function() return kept and x * x end)"},
};

// Bytes, not time: nothing of a step is left after the last collections.
TEST(HeldValues, NothingIsKeptForEver) {
  const auto live = std::make_shared<moonhalo::testing::LiveBytes>();
  const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, live);
  for (const char* mode : {"incremental", "generational"}) {
    const auto state = new_state();
    run(state.get(), "mh = require 'moonhalo'");
    for (const Way& way : kWays) {
      const int64_t before = live->now;
      const std::string text =
          run(state.get(), std::string("collectgarbage('") + mode + "') for _ = 1, " + std::to_string(kSteps) + " do " +
                               "local x = mh.zeros({" + std::to_string(kNumbers) +
                               "}, {dtype = 'float64'}):requires_grad_() " + way.step +
                               " end for _ = 1, 4 do collectgarbage() end return 'done'");
      EXPECT_EQ(text, "done") << way.name;
      EXPECT_LT(live->now - before, kNumbers * 8) << way.name << ", " << mode;
    }
  }
}

// With a module net of kNumbers float64, an optimizer opt of it and a mesh of one rank.
const Way kOwners[] = {
    {"a hook of its optimizer", "opt:register_reducer_pre_hook(function() return opt and nil end) train()"},
    {"two hooks of its optimizer",
     "opt:register_reducer_pre_hook(function() return opt and net and nil end) "
     "opt:register_reducer_post_hook(function() return opt and nil end) train()"},
    {"a hook of an optimizer that a group leads to",
     "local group = opt.param_groups[1] opt:register_reducer_pre_hook(function() return group and nil end) train()"},
    {"a fully sharded module", "mh.fully_shard(net, {mesh = mesh, min_numel = 1}) net(x):sum():backward()"},
    {"a fully sharded module forward", "mh.fully_shard(net, {mesh = mesh, min_numel = 1}) net(x)"},
    {"a fully sharded module and its optimizer",
     "mh.fully_shard(net, {mesh = mesh, min_numel = 1}) opt = mh.optim.SGD(net:parameters(), {lr = 0.1}) train()"},
    {"a replicated module", "mh.replicate(net, {mesh = mesh}) net(x):sum():backward()"},
    {"a hook of a fully sharded module's optimizer",
     "mh.fully_shard(net, {mesh = mesh, min_numel = 1}) opt = mh.optim.SGD(net:parameters(), {lr = 0.1}) "
     "opt:register_reducer_pre_hook(function() return opt and net and nil end) "
     "net:register_forward_hook(function() return net and nil end) train()"},
    {"a replicated module's optimizer",
     "mh.replicate(net, {mesh = mesh}) opt = mh.build_optimizer(net, mh.optim.SGD, {lr = 0.1}) "
     "opt:register_reducer_post_hook(function() return opt and nil end) train()"},
    {"hooks of its module",
     "net:register_forward_hook(function() return net and nil end) "
     "net:register_forward_pre_hook(function() return net and nil end) train()"},
    {"a schedule", "local s s = mh.optim.LambdaLR(opt, function() return (opt or s) and 1 end) train() s:step()"},
    {"a stage that has its pipeline",
     "local pipe = mh.pipeline(mh.nn.Sequential(net), {mesh = mesh, micros = 1}) net.pipe = {pipe} "
     "pipe:train_step({x}, function(y) return pipe and y:sum() end)"},
    {"a pipeline whose optimizer has a hook",
     "local pipe = mh.pipeline(mh.nn.Sequential(net), {mesh = mesh, micros = 1}) "
     "opt:register_reducer_pre_hook(function() return pipe and opt and nil end) net.opt = {opt} "
     "pipe:train_step({x}, function(y) return y:sum() end) opt:step()"},
    {"an average of it", "local average = mh.EMA(net) net.average = {average} average:update()"},
};

TEST(HeldValues, ObjectsAreFreedThatTheirFunctionsLeadTo) {
  const auto live = std::make_shared<moonhalo::testing::LiveBytes>();
  const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, live);
  const auto state = new_state();
  run(state.get(), "mh = require 'moonhalo' mesh = mh.init_device_mesh('cpu', {1}, {'pp'})");
  for (const Way& way : kOwners) {
    const std::string step = std::string("local net = mh.nn.Linear(100, ") + std::to_string(kNumbers / 100) +
                             "):double() local x = mh.ones({1, 100}, {dtype = 'float64'}) "
                             "local opt = mh.optim.SGD(net:parameters(), {lr = 0.1}) "
                             "local function train() net(x):sum():backward() opt:step() end " +
                             way.step;
    const std::string once = "do " + step + " end for _ = 1, 6 do collectgarbage() end return 'done'";
    ASSERT_EQ(run(state.get(), once), "done") << way.name;  // what the first call makes for all
    const int64_t before = live->now;
    const std::string text = run(state.get(), "for _ = 1, " + std::to_string(kSteps) + " do " + step +
                                                  " end for _ = 1, 6 do collectgarbage() end return 'done'");
    EXPECT_EQ(text, "done") << way.name;
    EXPECT_LT(live->now - before, kNumbers * 8) << way.name;
  }
}

// A state that is closed lets go of what it kept for a graph.
TEST(HeldValues, AStateThatIsClosedKeepsNothing) {
  const auto live = std::make_shared<moonhalo::testing::LiveBytes>();
  const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, live);
  at::Tensor loss;
  const int64_t before = live->now;
  {
    const auto state = new_state();
    run(state.get(), "mh = require 'moonhalo'");
    const std::string text = run(state.get(),
                                 "local x = mh.ones({10000}, {dtype = 'float64'}):requires_grad_() "
                                 "x:register_hook(function(g) return x and g * 3 end)"
                                 " loss = (x * 2):sum() x = nil for _ = 1, 3 do collectgarbage() end return 'done'");
    EXPECT_EQ(text, "done");
    lua_getglobal(state.get(), "loss");
    loss = check_tensor(state.get(), -1);
    lua_settop(state.get(), 0);
  }
  EXPECT_THROW(loss.backward(), std::exception);  // the function's state is closed
  loss.reset();
  EXPECT_LT(live->now - before, 10000 * 8);
}

// The graph alone holds the tensors, and collections of every kind run in between.
TEST(HeldValues, HooksLiveAsLongAsTheGraph) {
  const auto state = new_state();
  EXPECT_EQ(run(state.get(), R"(
local mh = require "moonhalo"
local kF64 = {dtype = "float64"}
local function collect(n) for _ = 1, n do collectgarbage() end end
local function leaf() return mh.ones({3}, kF64):requires_grad_() end

local called = {}
local function note(name, g) called[name] = (called[name] or 0) + g:sum():item() end
local function losses()
  local x = leaf()
  x:register_hook(function(g) note("leaf", g) return x ~= nil and g * 5 or g end)
  local h = x * 2
  h:register_hook(function(g) note("inner", g) return h ~= nil and g * 3 or g end)
  local other = leaf()
  other:register_hook(function(g) note("other", g) end)
  local kept = {}
  kept.y = mh.checkpoint(function(a, factor) note("again", a) return kept and a * factor end, h, 7)
  return (kept.y + other):sum(), x
end

for _, count in ipairs{0, 1, 2, 5} do
  called = {}
  local loss, x = losses()
  collect(count)
  loss:backward()
  collect(count)
  assert(called.leaf == 3 * 7 * 3 * 2 and called.inner == 3 * 7 and called.other == 3 and called.again == 6 + 6, count)
  assert(x.grad:sum():item() == 3 * 7 * 3 * 2 * 5)
  x.grad = nil
  ;(x * 2):sum():backward()  -- the hook of a tensor that lives
  assert(called.leaf == 3 * 7 * 3 * 2 + 6 and x.grad:sum():item() == 30)
end

-- A backward pass at any point of a collection finds its functions.
for _, mode in ipairs{"incremental", "generational"} do
  collectgarbage(mode)
  for step = 1, 300 do
    called = {}
    local loss = losses()
    if step % 3 == 0 then collect(step % 2 + 1) end
    for _ = 1, step % 50 do collectgarbage("step", 1) end
    loss:backward()
    assert(called.leaf == 3 * 7 * 3 * 2 and called.inner == 3 * 7 and called.other == 3, step)
  end
end
return "done")"),
            "done");
}

}  // namespace
}  // namespace moonhalo::scripting::test_held_values
