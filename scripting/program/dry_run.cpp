// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/program/dry_run.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "moonhalo/engine/forecast/tape_recorder.h"
#include "moonhalo/engine/profile/memory.h"
#include "moonhalo/engine/training/parameter_unit.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/core/collect_garbage.h"
#include "moonhalo/scripting/core/script_exit.h"
#include "moonhalo/scripting/core/strict_globals.h"
#include "moonhalo/scripting/program/silent_output.h"

namespace moonhalo::scripting {
namespace {

constexpr int kMostAtOnce = 8;

RankRun run_one(lua_State* lua, int64_t steps, int64_t timed) {
  forbid_undefined_globals(lua);
  collect_by_tensors_alone(lua);
  const SeenSpecs specs;
  // When Lua collects depends on what ran before. Without what it has left of earlier steps, steps can be compared.
  int64_t settled = 0, peak_of_steps = 0;
  const auto settle = [&] {
    collect_garbage(lua);
    if (++settled <= steps) peak_of_steps = memory_use().peak;
  };
  StepTapes tapes(
      *context(lua).world, steps, [] { throw ScriptStop("the steps of a dry run have ended"); }, settle, timed);
  // Steps behind the recorded ones are only timed. They may need values that are not computed, and fail.
  const auto all_recorded = [&] { return timed > 0 && tapes.ended() == steps; };
  try {
    run_script(lua, 0);
  } catch (const ScriptExit& exit) {
    if (exit.status() != 0 && !all_recorded()) throw;
  } catch (const ScriptStop&) {
    if (tapes.ended() < steps) throw;
  } catch (const std::exception&) {
    if (!all_recorded()) throw;
  }
  RankRun found;
  found.peak = tapes.ended() == steps ? peak_of_steps : memory_use().peak;
  found.host = tapes.host_seconds();
  found.steps = tapes.ended();
  found.steady = tapes.steady();
  found.tape = tapes.take();
  found.calls = tapes.take_calls();
  found.step = tapes.take_step();
  found.tape.gathers_parameters = gathers_parameters();
  found.meshes = specs.meshes();
  found.shares = specs.shares();
  return found;
}

}  // namespace

std::vector<RankRun> dry_run(SessionOptions options, const std::vector<int64_t>& ranks, int64_t steps, int64_t timed,
                             const std::function<void(int64_t)>& done) {
  options.backend = "fake";
  options.fake_tensors = true;
  options.quiet = true;
  options.shows_searches = true;
  const auto at_once = static_cast<size_t>(std::clamp(at::get_num_threads(), 1, kMostAtOnce));
  std::mutex mutex;
  std::map<int64_t, RankRun> found;
  for (size_t first = 0; first < ranks.size(); first += at_once) {
    const auto begin = ranks.begin() + static_cast<std::ptrdiff_t>(first);
    options.fake_ranks.assign(begin, begin + static_cast<std::ptrdiff_t>(std::min(at_once, ranks.size() - first)));
    const SilentOutput silent;
    const int status = run_session(options, [&](lua_State* lua) {
      RankRun run = run_one(lua, steps, timed);
      const std::lock_guard lock(mutex);
      found.emplace(run.tape.rank, std::move(run));
    });
    if (status != kDone) throw DryRunFailed(status);
    done(std::ssize(options.fake_ranks));
  }
  std::vector<RankRun> all;
  for (const int64_t rank : ranks) all.push_back(std::move(found.at(rank)));
  return all;
}

}  // namespace moonhalo::scripting
