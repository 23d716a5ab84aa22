// SPDX-License-Identifier: Apache-2.0
// Measures what a simulation code pays for a script (moonhalo_c.h), on one rank: an mh_call of an empty function
// against a bare lua_pcall of the same, in turns; and registering a field, whose time and memory must not grow with the
// field.
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
#include <string>
#include <vector>

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

}  // namespace

int main() {
  const std::string script =
      std::filesystem::temp_directory_path() / ("bench_embed_" + std::to_string(getpid()) + ".lua");
  std::ofstream(script) << "function nothing() end\nfunction half(x) return x / 2 end\n";
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
}
