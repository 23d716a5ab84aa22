// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moonhalo {

/// In which order the ranks of a pipeline work on the micro-batches of a step.
///
///     gpipe, 2 ranks, 3 micro-batches          1f1b                            (F0.1: forward of stage 0, micro-batch
///     1) F0.0 F0.1 F0.2 B0.0 B0.1 B0.2            F0.0 F0.1 B0.0 F0.2 B0.1 B0.2 F1.0 F1.1 F1.2 B1.0 B1.1 B1.2 F1.0
///     B1.0 F1.1 B1.1 F1.2 B1.2
///
/// gpipe keeps the activations of all micro-batches (Huang et al. 2019, "GPipe"), 1f1b those of as many as stages
/// follow (Narayanan et al. 2019, "PipeDream"). Interleaved: a rank has several stages, stage s on rank s mod ranks,
/// and waits less (Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters").
enum class Schedule : uint8_t { kGPipe, k1F1B, kInterleaved1F1B };
const char* name(Schedule schedule);
/// "gpipe" | "1f1b" | "interleaved_1f1b"; ValueError with the nearest name otherwise.
Schedule parse_schedule(const std::string& text);

enum class Pass : uint8_t { kForward, kBackward };

/// One stage's work on one micro-batch.
struct StageCall {
  Pass pass = Pass::kForward;
  int64_t stage = 0;
  int64_t micro = 0;
  bool operator==(const StageCall&) const = default;
  std::string to_string() const;  ///< "F0.1"
};

/// The calls of each rank, in order.
using PipelineSchedule = std::vector<std::vector<StageCall>>;

/// `stages` is a multiple of `ranks`, and equal to it for 1f1b on several ranks; any number of micro-batches.
PipelineSchedule make_schedule(Schedule schedule, int64_t ranks, int64_t stages, int64_t micros);
/// The forward passes alone.
PipelineSchedule make_forward_schedule(int64_t ranks, int64_t stages, int64_t micros);
/// A line for each rank.
std::string to_string(const PipelineSchedule& schedule);

/// The cost of a schedule when a forward takes one unit of time, a backward two and a message none.
struct ScheduleCosts {
  int64_t time = 0;
  double bubble = 0;          ///< share of the ranks' time in which they wait
  std::vector<int64_t> live;  ///< by rank: stage inputs kept for backward at once, at most
};

/// Goes through a schedule as the ranks do: a call begins when what it needs has come, and a rank that has something to
/// send waits until its neighbour has taken all but `capacity` - 1 of what was sent to it in the same direction.
/// ValueError, naming the call, when a call is missing, made twice or on a wrong rank, when a message meets the wrong
/// call, and when ranks wait for each other.
ScheduleCosts simulate(const PipelineSchedule& schedule, int64_t stages, int64_t micros, int64_t capacity = 1);
/// The smallest capacity with which no ranks wait for each other; ValueError as above when none is.
int64_t link_capacity(const PipelineSchedule& schedule, int64_t stages, int64_t micros);

}  // namespace moonhalo
