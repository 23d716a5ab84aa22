// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moonhalo {

/// The order in which the ranks of a pipeline process the micro-batches of a step. 2 ranks and 3 micro-batches, where
/// F0.1 is the forward of stage 0 for micro-batch 1 and B is backward:
///
///     gpipe     rank 0    F0.0 F0.1 F0.2 B0.0 B0.1 B0.2
///               rank 1    F1.0 F1.1 F1.2 B1.0 B1.1 B1.2
///     1f1b      rank 0    F0.0 F0.1 B0.0 F0.2 B0.1 B0.2
///               rank 1    F1.0 B1.0 F1.1 B1.1 F1.2 B1.2
///
/// gpipe holds the activations of all micro-batches (Huang et al. 2019, "GPipe"). 1f1b holds those of at most as many
/// micro-batches as there are stages from this one on (Narayanan et al. 2019, "PipeDream"). Interleaved: a rank has
/// several stages, stage s on rank s mod ranks, and waits less (Narayanan et al. 2021, "Efficient large-scale language
/// model training on GPU clusters").
enum class Schedule : uint8_t { kGPipe, k1F1B, kInterleaved1F1B };
/// Returns the name that parse_schedule reads. Not collective.
const char* name(Schedule schedule);
/// Parses "gpipe" | "1f1b" | "interleaved_1f1b". Throws ValueError with the nearest name for other strings. Not
/// collective.
Schedule parse_schedule(const std::string& text);

/// A forward or a backward.
enum class Pass : uint8_t { kForward, kBackward };

/// The work (`pass`) of one `stage` on one micro-batch (`micro`).
struct StageCall {
  Pass pass = Pass::kForward;
  int64_t stage = 0;
  int64_t micro = 0;
  bool operator==(const StageCall&) const = default;
  std::string to_string() const;  ///< "F0.1"
};

/// The calls of each rank, in order.
using PipelineSchedule = std::vector<std::vector<StageCall>>;

/// Returns the schedule. `stages` is a multiple of `ranks`, and equal to it for 1f1b on several ranks. Any number of
/// micro-batches is allowed. Not collective.
PipelineSchedule make_schedule(Schedule schedule, int64_t ranks, int64_t stages, int64_t micros);
/// Returns the schedule of the forward passes only. Not collective.
PipelineSchedule make_forward_schedule(int64_t ranks, int64_t stages, int64_t micros);
/// Returns one line per rank. Not collective.
std::string to_string(const PipelineSchedule& schedule);

/// The costs of a schedule if a forward takes 1 unit of time, a backward 2 and a message 0.
struct ScheduleCosts {
  int64_t time = 0;           ///< from the first call to the end of the last
  double bubble = 0;          ///< fraction of the ranks' time spent waiting
  std::vector<int64_t> live;  ///< per rank: the most stage inputs held for backward at once
};

/// Simulates a schedule. A call begins when its inputs have arrived. A rank that sends waits until its neighbour has
/// received all but `capacity` - 1 of the messages sent to it before in the same direction. Throws ValueError that
/// names the call if a call is missing, occurs twice or is on a wrong rank, if a message arrives at the wrong call, and
/// for a deadlock. Not collective.
ScheduleCosts simulate(const PipelineSchedule& schedule, int64_t stages, int64_t micros, int64_t capacity = 1);
/// Returns the smallest capacity without a deadlock. Throws ValueError as above if there is none. Not
/// collective.
int64_t link_capacity(const PipelineSchedule& schedule, int64_t stages, int64_t micros);

}  // namespace moonhalo
