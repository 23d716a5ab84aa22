// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/profile/profile_summary.h"
#include "moonhalo/engine/profile/recorder.h"

namespace moonhalo {

/// Shows what the ranks of a world do in their time, by operator, module, script line, phase and rank:
///
///     Profiler profiler(world);
///     profiler.start();
///     for (int i = 0; i < 3; ++i) train_step();   // each ends with step() of a ParallelOptimizer
///     profiler.stop();
///     if (world->rank() == 0) std::cout << profile_table(profiler.summary(), ProfileBy::kModule);
///
/// Name modules by InModule and your own ranges by RecordRange (recorder.h).
class Profiler {
 public:
  /// `nvtx`: every event is an NVTX range, too (Recorder).
  explicit Profiler(CommunicatorPtr world, Recorder::LineReader read_line = nullptr,
                    int64_t most_events = Recorder::kMostEvents, bool nvtx = false);
  /// Drops what is not stopped.
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Starts to record on this rank. Throws RuntimeError if this rank records already. Not collective.
  void start();
  /// Stops, and brings what was recorded together. Where a rank was not started, nothing is there of it. Where one rank
  /// fails, all throw its error. Collective over the world.
  void stop();
  /// Records the steps from `first` to `last` (watch_steps; the next one is 1; at most RankRecord::kLastStep), then
  /// stops and calls `done`, which is
  /// within the step() that ends step `last`: collective there. stop() ends this earlier. If no step from
  /// `first` on has ended, nothing is recorded, unless `first` is 1: a run without a step() counts as one step.
  void record_steps(int64_t first, int64_t last, std::function<void()> done);
  /// Ends what is under way, and keeps nothing of it. Not collective.
  void drop();
  bool running() const { return recorder_ != nullptr; }
  /// True from stop() on.
  bool stopped() const { return stopped_; }

  /// The sums over all ranks, the same on all. Throws RuntimeError before stop().
  const ProfileSummary& summary() const;
  /// The records of all ranks on rank 0; empty on the others. In a fake world that of this rank.
  const std::vector<RankRecord>& records() const { return records_; }
  Communicator& world() const { return *world_; }

 private:
  void begin(int64_t step);
  void stop_watching();
  void finish(bool step_ended);

  CommunicatorPtr world_;
  Recorder::LineReader read_line_;
  int64_t most_events_;
  bool nvtx_;
  std::unique_ptr<Recorder> recorder_;
  bool watches_ = false, stopped_ = false;
  bool no_step_yet_ = false;  // of those to record, none has ended
  std::vector<RankRecord> records_;
  ProfileSummary summary_;
};

}  // namespace moonhalo
