// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/program/real_run.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/forecast/least_time.h"
#include "moonhalo/engine/forecast/process_memory.h"
#include "moonhalo/engine/forecast/tape_recorder.h"
#include "moonhalo/engine/profile/memory.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/core/collect_garbage.h"
#include "moonhalo/scripting/core/script_exit.h"
#include "moonhalo/scripting/core/strict_globals.h"
#include "moonhalo/scripting/program/silent_output.h"

namespace moonhalo::scripting {
namespace {

using Json = nlohmann::ordered_json;

/// The resident memory of the process at its peak since this object was made, less that at its beginning.
class ResidentGrowth {
 public:
  ResidentGrowth() {
    release_free_memory();  // which dry runs and measured operators have left, and would hide what the real run takes
    std::ofstream("/proc/self/clear_refs") << "5";  // the peak begins again
    before_ = resident_memory();
  }
  int64_t bytes() const {
    std::ifstream file("/proc/self/status");
    for (std::string line; std::getline(file, line);) {
      if (line.rfind("VmHWM:", 0) == 0) return std::max<int64_t>(0, std::stoll(line.substr(6)) * 1024 - before_);
    }
    return std::max<int64_t>(0, resident_memory() - before_);
  }

 private:
  int64_t before_ = 0;
};

/// Takes the times of the steps from the second one behind the step that is looked at on, and ends the script after
/// them: the first one follows the recorder's end.
class StepTimes {
 public:
  StepTimes(const Communicator& world, int64_t step, int64_t timed, RealRank& found)
      : world_(world), step_(step), last_(step + 1 + timed), found_(found) {
    watch_steps(this, [this](int64_t ended) { end_step(ended); });
  }
  ~StepTimes() { watch_steps(this, nullptr); }
  StepTimes(const StepTimes&) = delete;
  StepTimes& operator=(const StepTimes&) = delete;

 private:
  void end_step(int64_t ended) {
    found_.steps = ended;
    if (ended <= step_) found_.peak = memory_use().peak;
    if (ended > step_ + 1) {
      found_.seconds.push_back(seconds_of(ClockOf::kWall) - wall_);
      found_.processor.push_back(seconds_of(ClockOf::kThread) - processor_);
      // A script that resets its counts begins again.
      const double blocked = world_.stats().waited;
      found_.blocked.push_back(blocked >= blocked_ ? blocked - blocked_ : blocked);
    }
    if (ended == last_) throw ScriptStop("the steps of a check have ended");
    wall_ = seconds_of(ClockOf::kWall);
    processor_ = seconds_of(ClockOf::kThread);
    blocked_ = world_.stats().waited;
  }

  const Communicator& world_;
  const int64_t step_, last_;
  RealRank& found_;
  double wall_ = 0, processor_ = 0, blocked_ = 0;
};

RealRank run_rank_for_real(lua_State* lua, int64_t step, int64_t timed) {
  forbid_undefined_globals(lua);
  collect_by_tensors_alone(lua);
  RealRank found;
  const Communicator& world = *context(lua).world;
  StepTapes tapes(
      world, step, [] {}, [lua] { collect_garbage(lua); });  // as in a dry run
  const double wall = seconds_of(ClockOf::kWall), processor = seconds_of(ClockOf::kThread),
               blocked = world.stats().waited;
  {
    const StepTimes times(world, step, timed, found);
    try {
      run_script(lua, 0);
    } catch (const ScriptExit& exit) {
      if (exit.status() != 0) throw;
    } catch (const ScriptStop&) {
      if (found.steps <= step + timed) throw;
    }
  }
  if (found.steps == 0) {
    found.seconds = {seconds_of(ClockOf::kWall) - wall};
    found.processor = {seconds_of(ClockOf::kThread) - processor};
    found.blocked = {std::max(0.0, world.stats().waited - blocked)};
  }
  if (found.steps < step) found.peak = memory_use().peak;
  found.searched = context(lua).searched;
  const Tape tape = tapes.take();
  found.counts = recorded_counts(tape);
  found.peak_of_step = peak_of(tape).bytes;
  return found;
}

std::string real_rank_text(const RealRank& rank) {
  Json counts = Json::array();
  for (const VerbCount& count : rank.counts) counts.push_back({count.calls, count.messages, count.bytes});
  const Json searched{rank.searched.measured, rank.searched.taken, rank.searched.forecast};
  return Json{rank.steps,   counts,         rank.peak,    rank.peak_of_step, rank.resident,
              rank.seconds, rank.processor, rank.blocked, searched}
      .dump();
}

RealRank real_rank_of(const std::string& text) {
  const Json all = Json::parse(text);
  RealRank rank{.steps = all[0], .peak = all[2], .peak_of_step = all[3], .resident = all[4]};
  for (size_t verb = 0; verb < rank.counts.size(); ++verb)
    rank.counts[verb] = {all[1][verb][0], all[1][verb][1], all[1][verb][2]};
  rank.seconds = all[5].get<std::vector<double>>();
  rank.processor = all[6].get<std::vector<double>>();
  rank.blocked = all[7].get<std::vector<double>>();
  rank.searched = {all[8][0], all[8][1], all[8][2]};
  return rank;
}

/// Ends the session of this process where rank 0's has called give_up_real_run. Collective.
void end_if_given_up(const Context& context) {
  if (context.ranks_are_threads) return;
  const std::string status = broadcast_string(*context.world, "");
  if (status.empty()) return;
  std::fprintf(stderr, "moonhalo: plan: rank %d ends, because rank 0 failed before the real run\n",
               context.world->rank());
  throw ScriptExit(std::stoi(status));
}

}  // namespace

void give_up_real_run(SessionOptions options, int status) {
  options.quiet = true;
  run_session(options, [&](lua_State* lua) { broadcast_string(*context(lua).world, std::to_string(status)); });
}

int real_run(SessionOptions options, int64_t step, int64_t timed, std::vector<RealRank>& ranks) {
  options.quiet = true;
  const ResidentGrowth growth;
  const SilentOutput silent;
  return run_session(options, [&](lua_State* lua) {
    end_if_given_up(context(lua));
    RealRank found = run_rank_for_real(lua, step, timed);
    found.resident = growth.bytes();
    Communicator& world = *context(lua).world;
    const std::vector<std::string> all = world.all_gather_strings(real_rank_text(found));
    if (world.rank() != 0) return;
    for (const std::string& one : all) ranks.push_back(real_rank_of(one));
  });
}

}  // namespace moonhalo::scripting
