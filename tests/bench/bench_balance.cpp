// SPDX-License-Identifier: Apache-2.0
// mh.balance on thread ranks that train a small network, one of which becomes slow: after every operator it waits,
// busy, as long as the operator took without what it waited for others. Printed: seconds of a step and slowest /
// fastest busy time before the slow-down, in it before and after rows have moved, and after its end; and the moves.
// Targets: busy times within 10 % 40 steps after either change, at most 4 moves each.
//   bench_balance [RANKS [ROWS]]      needs a core for each rank
#include <ATen/record_function.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/program/session.h"

namespace moonhalo::scripting {
namespace {

constexpr const char* kScript = R"lua(
local mh, nn = require "moonhalo", require("moonhalo").nn
local rows = tonumber((...))
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"domain"})
local u = mh.randn{9, rows, 64}
local data = mh.data.from_tensors({u = u}, {dims = {"time", "latitude", "longitude"}})
local set = data:windows{inputs = {fields = {"u"}, steps = {0}}}
local loader = set:loader{mesh = mesh, cut = {latitude = "domain"}, batch = 1}
local net = nn.Sequential(nn.Conv2d(1, 16, 3, {padding = 1}), nn.GELU(), nn.Conv2d(16, 16, 3, {padding = 1}), nn.GELU(),
  nn.Conv2d(16, 1, 3, {padding = 1}))
local opt = mh.optim.SGD(net:parameters(), {lr = 1e-3})
local balance = mh.balance{mesh = mesh, cut = {latitude = "domain"}, loader = loader}
local moves, step, began, waited = {}, 0, mh.clock(), mh.comm_stats().waited
local function report(title, steps)
  local now, after = mh.clock(), mh.comm_stats().waited
  local mine = ("%a"):format(now - began - (after - waited))
  local slowest, fastest = 0, math.huge
  for _, text in ipairs(mh._files.of_all_ranks(mine)) do
    slowest, fastest = math.max(slowest, tonumber(text)), math.min(fastest, tonumber(text))
  end
  if mh.rank() == 0 and title then
    print(("%-34s %8.2f ms a step, slowest / fastest %5.2f, rows %s"):format(title, (now - began) / steps * 1e3,
      slowest / fastest, table.concat(balance:sizes(), " ")))
  end
  began, waited = mh.clock(), mh.comm_stats().waited
end
local function train(count)
  local done = 0
  while done < count do
    for batch in loader:batches() do
      opt:zero_grad()
      net(batch.inputs):square():mean():backward()
      opt:step()
      step, done = step + 1, done + 1
      if balance:step() then moves[#moves + 1] = step end
      if done == count then break end
    end
  end
end
train(10) report(nil)
train(10) report("equal", 10)
mh._slow_down(mh.rank() == 0)
train(10) report("one slow, steps 1 to 10", 10)
train(30) report(nil)
train(20) report("one slow, steps 41 to 60", 20)
mh._slow_down(false)
train(10) report("equal again, steps 1 to 10", 10)
train(30) report(nil)
train(20) report("equal again, steps 41 to 60", 20)
if mh.rank() == 0 then print("moves after steps " .. table.concat(moves, " ") .. "; " .. tostring(balance)) end
)lua";

using Clock = std::chrono::steady_clock;

struct Slow {
  Communicator* world = nullptr;
  int depth = 0;
  Clock::time_point begun;
  double waited = 0;
  at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
};
thread_local Slow slow;

std::unique_ptr<at::ObserverContext> begin_operator(const at::RecordFunction&) {
  if (slow.depth++ == 0) {
    slow.begun = Clock::now();
    slow.waited = slow.world->stats().waited;
  }
  return nullptr;
}

void end_operator(const at::RecordFunction&, at::ObserverContext*) {
  if (--slow.depth > 0) return;
  const auto now = Clock::now();
  const std::chrono::duration<double> own =
      now - slow.begun - std::chrono::duration<double>(slow.world->stats().waited - slow.waited);
  while (Clock::now() - now < own) {
  }
}

/// _slow_down(on): every operator of this rank takes twice its time.
int slow_down(lua_State* lua) {
  if (slow.handle != at::INVALID_CALLBACK_HANDLE) at::removeCallback(slow.handle);
  slow.handle = at::INVALID_CALLBACK_HANDLE;
  slow.world = context(lua).world.get();
  if (!lua_toboolean(lua, 1)) return 0;
  slow.handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(begin_operator, end_operator).scopes({at::RecordScope::FUNCTION}));
  return 0;
}

const luaL_Reg kSlowFunctions[] = {{"_slow_down", guard<slow_down>}, {nullptr, nullptr}};
const Binding slow_binding{"slow", [](lua_State* lua) { add_functions(lua, kSlowFunctions); }};

}  // namespace
}  // namespace moonhalo::scripting

int main(int argc, char** argv) {
  namespace scripting = moonhalo::scripting;
  const std::string path = "/tmp/bench_balance_" + std::to_string(getpid()) + ".lua";
  std::ofstream(path) << scripting::kScript;
  scripting::SessionOptions options;
  options.script = path;
  options.ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  options.arguments = {argc > 2 ? argv[2] : "256"};
  const int status = scripting::run_session(options, [](lua_State* lua) { scripting::run_script(lua, 0); });
  std::remove(path.c_str());
  return status;
}
