// SPDX-License-Identifier: Apache-2.0
// Measures what a simulation code pays for a script (moonhalo_c.h), on one rank: an mh_call of an empty function
// against a bare lua_pcall of the same, in turns; and registering a field, whose time and memory must not grow with the
// field. Then, on two ranks that are threads, a step whose stencil reads over the border of the blocks, by mh_call and
// in C++ in turns: messages, bytes and time; and the step of a solver whose network trains on the other rank, against
// the same step without a network, in turns.
//   bench_embed        prints medians of CPU time, and the bytes that LibTorch allocated
#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <lua.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/tensor/host_block.h"
#include "moonhalo/scripting/embed/host_session.h"
#include "moonhalo/scripting/embed/moonhalo_c.h"
#include "tests/support/live_bytes.h"

namespace {

constexpr int kRounds = 21, kCalls = 20000, kRegistrations = 50;

void check(mh_status status) { TORCH_CHECK(status == MH_OK, mh_error()); }

/// CPU time: on a busy machine it says more than the wall clock.
double median_microseconds(int calls, const std::function<void()>& work) {
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    const std::clock_t begin = std::clock();
    for (int i = 0; i < calls; ++i) work();
    rounds.push_back(1e6 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC / calls);
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[rounds.size() / 2];
}

void bench_call(mh_session* session) {
  const std::unique_ptr<lua_State, void (*)(lua_State*)> bare(luaL_newstate(), lua_close);
  TORCH_CHECK(luaL_dostring(bare.get(), "function nothing() end") == LUA_OK);
  const double lua = median_microseconds(kCalls, [&] {
    lua_getglobal(bare.get(), "nothing");
    lua_pcall(bare.get(), 0, 0, 0);
  });
  const double empty = median_microseconds(kCalls, [&] { check(mh_call(session, "nothing", 0, nullptr, 0, nullptr)); });
  double in = 3, out = 0;
  const double numbers = median_microseconds(kCalls, [&] { check(mh_call(session, "half", 1, &in, 1, &out)); });
  std::printf("empty mh_call         %8.2f us   bare lua_pcall %.2f us, ratio %.1f\n", empty, lua, empty / lua);
  std::printf("a number in and out   %8.2f us\n", numbers);
  const double beside = median_microseconds(kCalls / 20, [&] {
    check(mh_call_begin(session, "nothing", 0, nullptr));
    check(mh_call_end(session, 0, nullptr));
  });
  std::printf("empty begin and end   %8.2f us   on another thread\n", beside);
}

void bench_field(mh_session* session, int64_t rows) {
  std::vector<double> memory(static_cast<size_t>((rows + 2) * 1026));
  mh_block block{};
  block.size = sizeof(block);
  block.data = memory.data();
  block.dtype = MH_FLOAT64;
  block.ndim = 2;
  block.extent[0] = rows + 2;
  block.extent[1] = 1026;
  for (const int d : {0, 1}) block.ghost_low[d] = block.ghost_high[d] = 1;
  check(mh_field(session, "u", &block));
  auto live = std::make_shared<moonhalo::testing::LiveBytes>();
  {
    const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, live);
    check(mh_field(session, "u", &block));
  }
  const double each = median_microseconds(kRegistrations, [&] { check(mh_field(session, "u", &block)); });
  std::printf("field of %6.1f MiB    %8.2f us   %lld bytes allocated at most, of facts\n",
              static_cast<double>(memory.size() * sizeof(double)) / (1 << 20), each,
              static_cast<long long>(live->peak));
  check(mh_field(session, "u", nullptr));
}

// ---- An exchange in a step ----------------------------------------------------------------------------------------

double now_on(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

void call_nothing(moonhalo::scripting::HostSession& session) {
  const auto outcome = session.call("nothing", {}, {});
  TORCH_CHECK(outcome.status == MH_OK, outcome.text);
}

double number(moonhalo::scripting::HostSession& session, const char* function) {
  double out = 0;
  const auto outcome = session.call(function, {}, {&out, 1});
  TORCH_CHECK(outcome.status == MH_OK, outcome.text);
  return out;
}

constexpr const char* kExchangeScript = R"lua(
local mh = require "moonhalo"
local fields = mh.host.fields
local kernel = mh.ones({1, 1, 3, 3}, {dtype = "float64"})
function nothing() end
function smooth() return mh.conv2d(fields.u:unsqueeze(0):unsqueeze(0), kernel, nil, {padding = 1}):square():sum() end
)lua";

/// Messages and bytes that a rank has sent in a step, and its milliseconds of CPU.
struct Step {
  int64_t messages, bytes;
  double cpu;
};

/// `world`: where `step` sends. Its turns are as long as those of the other ranks.
Step measure(moonhalo::Communicator& world, const std::function<double()>& step) {
  const int steps = 20;
  const moonhalo::CommStats::Count before = world.stats().total();
  const double begin = now_on(CLOCK_THREAD_CPUTIME_ID);
  for (int i = 0; i < steps; ++i) step();
  const double cpu = (now_on(CLOCK_THREAD_CPUTIME_ID) - begin) / steps;
  const moonhalo::CommStats::Count after = world.stats().total();
  return {(after.messages - before.messages) / steps, (after.bytes - before.bytes) / steps, cpu};
}

Step median(std::vector<Step>& steps) {
  std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.cpu < b.cpu; });
  return steps[steps.size() / 2];
}

void bench_exchange(const std::string& script, int64_t rows) {
  moonhalo::run_ranks(2, [&](moonhalo::Communicator& world) {
    std::vector<double> memory((rows + 2) * (rows + 2), 0.5);
    moonhalo::Block block{memory.data(), at::kDouble, {rows + 2, rows + 2}};
    block.ghost_low = block.ghost_high = {1, 1};
    block.begin = {rows * world.rank(), 0};
    moonhalo::scripting::HostSession session(world.split(0, world.rank()), world.split(0, world.rank()), std::nullopt,
                                             /*check_finite=*/false);
    auto outcome = session.open(script, "");
    TORCH_CHECK(outcome.status == MH_OK, outcome.text);
    outcome = session.field(
        "u", [&] { return block; }, false);
    TORCH_CHECK(outcome.status == MH_OK, outcome.text);
    const moonhalo::CommunicatorPtr own = world.split(0, world.rank());
    const at::Tensor field = moonhalo::as_shard_tensor(block, moonhalo::init_device_mesh(*own, "cpu", {2}));
    const at::Tensor kernel = at::ones({1, 1, 3, 3}, at::kDouble);
    double in_c = 0, in_cpp = 0;
    std::vector<Step> c, cpp, empty;
    for (int round = 0; round < kRounds; ++round) {
      c.push_back(measure(*session.world(), [&] { return in_c = number(session, "smooth"); }));
      empty.push_back(measure(*session.world(), [&] { return call_nothing(session), 0.0; }));
      cpp.push_back(measure(*own, [&] {
        const at::Tensor image = field.unsqueeze(0).unsqueeze(0);
        return in_cpp = at::conv2d(image, kernel, {}, 1, 1).square().sum().item<double>();
      }));
    }
    TORCH_CHECK(in_c == in_cpp, "they differ: ", in_c, " and ", in_cpp);
    const Step ours = median(c), theirs = median(cpp), nothing = median(empty);
    if (world.rank() != 0) return;
    std::printf(
        "a step of %4lld^2 cells  %6.3f ms of CPU by mh_call, %.3f an empty one, %.3f in C++, ratio %.3f; %lld and "
        "%lld messages "
        "of %lld and %lld bytes\n",
        static_cast<long long>(rows), ours.cpu, nothing.cpu, theirs.cpu, ours.cpu / theirs.cpu,
        static_cast<long long>(ours.messages), static_cast<long long>(theirs.messages),
        static_cast<long long>(ours.bytes), static_cast<long long>(theirs.bytes));
  });
}

// ---- Trainers on a rank of their own ------------------------------------------------------------------------------

constexpr int64_t kWide = 1026;  // of the solver's block, with ghosts
constexpr int kSteps = 50;

/// Explicit Euler of the heat equation.
class Heat {
 public:
  void step() {
    for (int64_t i = 1; i < kWide - 1; ++i) {
      for (int64_t j = 1; j < kWide - 1; ++j) {
        const int64_t at = i * kWide + j;
        const double around = now_[at - kWide] + now_[at + kWide] + now_[at - 1] + now_[at + 1];
        next_[at] = now_[at] + 0.2 * (around - 4 * now_[at]);
      }
    }
    std::copy(next_.begin(), next_.end(), now_.begin());
  }
  /// The least that a snapshot costs whoever sends it: the owned cells, packed.
  void copy_to(std::vector<double>& packed) const {
    for (int64_t i = 1; i < kWide - 1; ++i)
      std::copy_n(&now_[i * kWide + 1], kWide - 2, &packed[(i - 1) * (kWide - 2)]);
  }
  moonhalo::Block block() {
    moonhalo::Block block{now_.data(), at::kDouble, {kWide, kWide}};
    block.ghost_low = block.ghost_high = {1, 1};
    block.begin = {0, 0};
    return block;
  }

 private:
  std::vector<double> now_ = std::vector<double>(kWide * kWide, 1.0), next_ = now_;
};

/// Milliseconds of CPU and of the wall clock that a step takes.
struct StepTime {
  double cpu, wall;
};

void solve(moonhalo::scripting::HostSession& session, int every) {
  Heat heat;
  const auto outcome = session.field(
      "u", [&] { return heat.block(); }, false);
  TORCH_CHECK(outcome.status == MH_OK, outcome.text);
  int fresh = 0;
  std::vector<double> packed((kWide - 2) * (kWide - 2));
  enum With { kNothing, kCopies, kTrainers };
  const auto steps = [&](With with) {
    const StepTime begin{now_on(CLOCK_THREAD_CPUTIME_ID), now_on(CLOCK_MONOTONIC)};
    for (int i = 0; i < kSteps; ++i) {
      heat.step();
      if (with == kCopies && i % every == 0) heat.copy_to(packed);
      if (with == kTrainers) fresh += static_cast<int>(number(session, "step"));
    }
    return StepTime{(now_on(CLOCK_THREAD_CPUTIME_ID) - begin.cpu) / kSteps,
                    (now_on(CLOCK_MONOTONIC) - begin.wall) / kSteps};
  };
  std::vector<double> alone, copied, beside, wall;
  for (int round = 0; round < kRounds; ++round) {
    alone.push_back(steps(kNothing).cpu);
    copied.push_back(steps(kCopies).cpu);
    const StepTime time = steps(kTrainers);
    beside.push_back(time.cpu);
    wall.push_back(time.wall);
  }
  number(session, "finish");
  for (auto* times : {&alone, &copied, &beside, &wall}) std::sort(times->begin(), times->end());
  const size_t middle = kRounds / 2;
  std::printf(
      "a solver's step       %8.3f ms of CPU alone, %.3f with trainers (%.3f of the wall clock), ratio %.3f, of a bare "
      "copy %.3f; every %d steps, %d times new weights\n",
      alone[middle], beside[middle], wall[middle], beside[middle] / alone[middle], copied[middle] / alone[middle],
      every, fresh);
}

void bench_trainers(const std::string& script, int every) {
  moonhalo::run_ranks(2, [&](moonhalo::Communicator& world) {
    moonhalo::scripting::HostSession session(world.split(0, world.rank()), world.split(0, world.rank()), std::nullopt,
                                             /*check_finite=*/false);
    const auto outcome = session.open(script, "every=" + std::to_string(every));
    TORCH_CHECK(outcome.status == MH_OK, outcome.text);
    if (world.rank() == 0) {
      solve(session, every);
    } else {
      number(session, "serve");
    }
  });
}

constexpr const char* kTrainersScript = R"lua(
local mh = require "moonhalo"
local config = mh.config {every = 10}
local net = mh.nn.Conv2d(1, 1, 3, {padding = 1}):double()
local optimizer = mh.optim.SGD(net:parameters(), {lr = 1e-3})
local trainers = mh.host.trainers {ranks = 1, every = config.every, fields = {"u"}, weights = net, learn = function()
  local u = mh.host.fields.u:unsqueeze(0):unsqueeze(0)
  optimizer:zero_grad()
  mh.mse_loss(net(u), u):backward()
  optimizer:step()
end}
function step() return trainers:step() and 1 or 0 end
function finish() return trainers:finish() and 1 or 0 end
function serve() return trainers:serve() end
)lua";

}  // namespace

int main() {
  const std::string script =
      std::filesystem::temp_directory_path() / ("bench_embed_" + std::to_string(getpid()) + ".lua");
  const std::string script_of_trainers = script + ".trainers.lua";
  std::ofstream(script) << "function nothing() end\nfunction half(x) return x / 2 end\n";
  const std::string script_of_exchange = script + ".exchange.lua";
  std::ofstream(script_of_trainers) << kTrainersScript;
  std::ofstream(script_of_exchange) << kExchangeScript;
  mh_session* session = nullptr;
  mh_options options = MH_OPTIONS;
  options.script = script.c_str();
  const mh_status opened = mh_open(&options, &session);
  std::filesystem::remove(script);
  check(opened);
  bench_call(session);
  bench_field(session, 64);
  bench_field(session, 64 * 512);
  check(mh_close(session));
  for (const int64_t rows : {64, 512}) bench_exchange(script_of_exchange, rows);
  std::filesystem::remove(script_of_exchange);
  for (const int every : {10, 50}) bench_trainers(script_of_trainers, every);
  std::filesystem::remove(script_of_trainers);
}
