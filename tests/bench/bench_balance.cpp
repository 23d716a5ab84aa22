// SPDX-License-Identifier: Apache-2.0
// mh.balance on thread ranks that train a small network, of which rank 0 becomes slow: after every operator it waits,
// busy, as long as the operator took without what it waited for others. With "slices" ranks are bound to a core each,
// and another process is busy on that of rank 0 for 1 ms, and then idle for 1 ms. Printed: seconds of a step, step /
// ideal, and slowest / fastest busy time, before the slow-down, in it before and after rows have moved, and after its
// end; and the moves. In the ideal step rank 0 has half of the rows of the others, and no rank waits.
// Targets: busy times within 10 % and 1.1 x the ideal 40 steps after either change, at most 4 moves each. Steps of 1
// ms wait for slices of 1 ms, whatever the blocks are: give 4096 rows.
//   bench_balance [RANKS [ROWS [slices]]]      needs a core for each rank
#include <ATen/record_function.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
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
local rows, in_slices = tonumber((...)), select(2, ...) == "slices"
if in_slices then mh._bind_to_core(mh.rank()) end
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
local equal  -- the step of equal ranks
local function report(title, steps)
  local now, after = mh.clock(), mh.comm_stats().waited
  local mine = ("%a"):format(now - began - (after - waited))
  local slowest, fastest = 0, math.huge
  for _, text in ipairs(mh._files.of_all_ranks(mine)) do
    slowest, fastest = math.max(slowest, tonumber(text)), math.min(fastest, tonumber(text))
  end
  local took = (now - began) / (steps or 1)
  equal = equal or title and took
  -- Rank 0 has half of the speed of the others.
  local ideal = title and title:find "^one slow" and equal * mh.world_size() / (mh.world_size() - 0.5) or equal
  if mh.rank() == 0 and title then
    print(("%-34s %8.2f ms a step, %.2f of the ideal, slowest / fastest %5.2f, rows %s"):format(title, took * 1e3,
      took / ideal, slowest / fastest, table.concat(balance:sizes(), " ")))
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
local slow_down = in_slices and mh._take_core or mh._slow_down
slow_down(mh.rank() == 0)
train(10) report("one slow, steps 1 to 10", 10)
train(30) report(nil)
train(20) report("one slow, steps 41 to 60", 20)
slow_down(false)
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

void bind_to_core(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  TORCH_CHECK(sched_setaffinity(0, sizeof cores, &cores) == 0, "cannot use core ", core);
}

/// _bind_to_core(core): of this thread.
int bind_rank(lua_State* lua) {
  bind_to_core(static_cast<int>(luaL_checkinteger(lua, 1)));
  return 0;
}

/// On core 0, busy for 1 ms and then idle for 1 ms, until the process is killed.
[[noreturn]] void be_busy_in_slices() {
  constexpr auto kSlice = std::chrono::milliseconds(1);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  bind_to_core(0);
  raise(SIGSTOP);
  while (true) {
    const auto begin = Clock::now();
    while (Clock::now() - begin < kSlice) {
    }
    const timespec idle{0, std::chrono::nanoseconds(kSlice).count()};
    nanosleep(&idle, nullptr);
  }
}

/// A process that is stopped.
pid_t other_process = 0;

/// _take_core(on): the other process is busy on core 0, half of the time. The other ranks do nothing.
int take_core(lua_State* lua) {
  if (context(lua).rank() == 0) kill(other_process, lua_toboolean(lua, 1) ? SIGCONT : SIGSTOP);
  return 0;
}

const luaL_Reg kSlowFunctions[] = {{"_slow_down", guard<slow_down>},
                                   {"_bind_to_core", guard<bind_rank>},
                                   {"_take_core", guard<take_core>},
                                   {nullptr, nullptr}};
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
  options.arguments = {argc > 2 ? argv[2] : "256", argc > 3 ? argv[3] : ""};
  // While the process is small, or its pages would have to be copied later.
  scripting::other_process = fork();
  if (scripting::other_process == 0) scripting::be_busy_in_slices();
  const int status = scripting::run_session(options, [](lua_State* lua) { scripting::run_script(lua, 0); });
  std::remove(path.c_str());
  kill(scripting::other_process, SIGKILL);
  return status;
}
