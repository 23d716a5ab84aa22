// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "moonhalo/engine/forecast/tape_summary.h"
#include "moonhalo/scripting/program/session.h"

namespace moonhalo::scripting {

/// The findings of a real run on one rank.
struct RealRank {
  int64_t steps = 0;         ///< training steps that have ended
  VerbCounts counts{};       ///< of the step that is looked at, or of the whole script if it has no steps
  int64_t peak = 0;          ///< bytes of tensors, from the start of the script to the end of that step
  int64_t peak_of_step = 0;  ///< within the step
  Searched searched;         ///< by the script; none measured: it did not search, or took the shortest forecast
  int64_t resident = 0;      ///< bytes that the process grew by at its peak; rank threads share it
  /// Seconds of each timed step: wall time, processor time of the rank's thread, time inside of collectives.
  std::vector<double> seconds, processor, blocked;
};

/// The first step that real_run times: the one behind the step that is looked at has the recorder's end.
inline int64_t first_timed_step(int64_t step) { return step + 2; }

/// Runs the script of `options` on its ranks until step `step`, one more and `timed` steps have ended: on rank
/// threads, or on the processes of a launcher. What the script prints is dropped. `ranks`: what each rank did; empty in
/// processes without rank 0. Returns the exit status; if it is not 0, what failed was printed.
int real_run(SessionOptions options, int64_t step, int64_t timed, std::vector<RealRank>& ranks);

/// Rank 0 of a launcher's processes calls it in place of real_run, where what it did before has failed: real_run then
/// returns `status`, which is not 0, in the others, which would wait for rank 0.
void give_up_real_run(SessionOptions options, int status);

}  // namespace moonhalo::scripting
