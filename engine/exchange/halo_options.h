// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moonhalo {

class Communicator;

/// Says how halos travel; the bits that arrive are the same.
enum class HaloBackend : uint8_t {
  kP2p,       ///< messages between the ranks that have something for each other, posted and waited for apart
  kAllToAll,  ///< one packed collective of all ranks of the mesh, which returns when everything has arrived
};

struct HaloOptions {
  /// True if operators compute what needs no neighbour while halos travel. Off: they wait first, and do the same
  /// computations in the same order. With kAllToAll they always wait first.
  bool overlap = true;
  HaloBackend backend = HaloBackend::kP2p;
  /// True if edges that a tensor's reader received are kept with the tensor for its next readers (a convolution's
  /// backward, a second branch), until it is written. Blocks must then be written through the ShardTensor alone: see
  /// halo_cache.h.
  bool keep = false;
  bool operator==(const HaloOptions&) const = default;
};

/// Sets this thread's options (ranks may be threads) for all interval maps; returns those before. Looked at
/// when data moves, so plans that were made before follow it. It must be the same on every rank: with `world` given the
/// call is collective over it and throws ValueError on every rank, changing nothing, where they differ. Without, thread
/// ranks in different back ends are told so by the communicator, ranks of MPI run into the time limit.
HaloOptions set_halo(const HaloOptions& options, Communicator* world = nullptr);
const HaloOptions& halo_options();
/// Changes whenever set_halo changes `keep`, so that nothing is reused that was kept before. The same on every rank.
int64_t halo_setting();
/// "p2p" | "all_to_all"
const char* name(HaloBackend backend);

/// Times of this thread's exchanges that moved something: how long they were under way (posted until arrived), and how
/// much of that this rank did nothing but wait (or, where ranks are threads, copy).
struct HaloTimes {
  int64_t exchanges = 0;
  double under_way = 0, waited = 0;  // seconds
  /// The share of the time under way that was spent on computing; 0 if nothing travelled.
  double hidden() const { return under_way > 0 ? 1 - waited / under_way : 0; }
  HaloTimes operator-(const HaloTimes& earlier) const {
    return {exchanges - earlier.exchanges, under_way - earlier.under_way, waited - earlier.waited};
  }
};
HaloTimes& halo_times();

/// Lists what one operator did in which order: "start" and "finish" of an exchange, and in between or after them what
/// the operator says with note_halo ("interior", "edges"); "kept" where edges were not exchanged again. Empty where
/// nothing was exchanged.
using HaloEvents = std::vector<std::string>;
/// Adds to the events that are being recorded on this thread, if any are.
void note_halo(const char* event);
/// Records the events of this thread while it lives.
class RecordHalo {
 public:
  explicit RecordHalo(HaloEvents* events);
  ~RecordHalo();
  RecordHalo(const RecordHalo&) = delete;

 private:
  HaloEvents* before_;
};

}  // namespace moonhalo
