// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace moonhalo {

/// The reasons for which data moves between ranks, as flags. Rules declare the traffic of their calls (Rule::traffic),
/// and communicators record the actual traffic, so tests can compare the two, and forecasts can name causes.
enum class Traffic : uint16_t {
  kNone = 0,
  kInputs = 1,          ///< inputs, redistributed as the plan requires; writes, back to the original tensors
  kHalo = 2,            ///< rows that other ranks own, located from the specs, and their gradients back
  kAllReduce = 4,       ///< reductions over ranks: sums, extremes, counts
  kRedistribute = 8,    ///< whole tensors, to another sharding
  kRing = 16,           ///< blocks, passed from rank to rank until all ranks have had them
  kDataDependent = 32,  ///< amounts that depend on values: rows at given indices, lists of unknown length
  kOther = 64,          ///< outside of a TrafficScope: set-up, files, calls of the program; no rule declares it
  kGradients = 128,     ///< gradients, summed over ranks and brought to the tensors that they belong to
  kParameters = 256,    ///< parameters that are stored in blocks (fully_shard), gathered
  kStages = 512,        ///< tensors from one stage of a pipeline to others
  kDistribute = 1024,   ///< tensors that become ShardTensors: blocks of other ranks, and facts of all blocks
};
constexpr Traffic operator|(Traffic a, Traffic b) { return static_cast<Traffic>(uint16_t(a) | uint16_t(b)); }
/// The flags that are set in `a` and not in `b`.
constexpr Traffic operator-(Traffic a, Traffic b) { return static_cast<Traffic>(uint16_t(a) & ~uint16_t(b)); }

/// Returns "halo, all_reduce", or "none". Not collective, like all of this file.
std::string to_string(Traffic traffic);

/// Counts the traffic of this thread during its lifetime as `traffic`. The outermost scope wins.
class TrafficScope {
 public:
  explicit TrafficScope(Traffic traffic) : scope_(scope_of_rank()) {
    if (*scope_ != Traffic::kNone) {
      scope_ = nullptr;
    } else {
      *scope_ = traffic;
    }
  }
  ~TrafficScope() {
    if (scope_ != nullptr) *scope_ = Traffic::kNone;
  }
  TrafficScope(const TrafficScope&) = delete;
  TrafficScope& operator=(const TrafficScope&) = delete;

 private:
  static Traffic* scope_of_rank();
  Traffic* scope_;  // null inside another scope
};

/// Collects the traffic of this thread during its lifetime, nested calls included.
class TrafficNotes {
 public:
  TrafficNotes();
  ~TrafficNotes();
  TrafficNotes(const TrafficNotes&) = delete;
  TrafficNotes& operator=(const TrafficNotes&) = delete;
  Traffic seen() const;  ///< since it was made

 private:
  Traffic before_;
};

/// The reason for which data moves now: that of the TrafficScope, or `otherwise` outside of any. Not collective.
Traffic traffic_now(Traffic otherwise);
/// Called by communicators when data moves. Not collective.
void note_traffic(Traffic traffic);

}  // namespace moonhalo
