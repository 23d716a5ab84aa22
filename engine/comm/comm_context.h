// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "moonhalo/engine/base/base_context.h"
#include "moonhalo/engine/comm/before_collective.h"
#include "moonhalo/engine/comm/several_ranks.h"
#include "moonhalo/engine/comm/traffic.h"

namespace moonhalo {

class CallScope;
class Communicator;
class CommObserver;
struct CommStats;
struct NcclRank;

/// One rank's state of communication.
struct CommContext {
  /// Calls of verbs (communicator.cpp): bytes sent, who listens, and whether they are counted.
  struct Counting {
    int64_t bytes_sent = 0;
    BeforeCollective before_collective = nullptr;
    int stats_pause = 0;
    CommObserver* observer = nullptr;
    bool inside_verb = false;
  } counting;
  /// A group of this rank: the numbers that its ranks share are made of how it was split from the world.
  struct Group {
    std::weak_ptr<const Communicator> group;
    uint64_t number = 1;
    uint64_t splits = 0;
  };
  std::map<const Communicator*, Group> groups;
  /// The reason for which data moves now, and those seen so far (traffic.h).
  struct {
    Traffic scope = Traffic::kNone, seen = Traffic::kNone;
  } traffic;
  /// The operator that calls verbs, and the line of the program (diagnostics/call_fingerprint.h).
  CallScope* innermost_call = nullptr;
  struct Position {
    const void* owner = nullptr;
    std::function<std::string()> text;
  } position;
  /// Time limits (time_limit.h): scopes without one; the time of waits that ended with an error.
  int scopes_without_limit = 0;
  std::chrono::steady_clock::duration failed_waits{};
  std::optional<SteadyTime> several_ranks_since;          ///< several_ranks.h
  std::chrono::steady_clock::time_point crowded_until{};  ///< others keep the core busy (polling_pause.cpp)
  /// The device that this rank got where each has one of its own (device/rank_device.cpp).
  std::optional<c10::Device> device;
  /// By world, whose groups on one rank have one counter, and device; as far as they live
  /// (device/nccl_communicator.cpp).
  std::map<std::pair<const CommStats*, c10::DeviceIndex>, std::weak_ptr<NcclRank>> nccl_ranks;
};
inline const RankLocal<CommContext> comm_context;

}  // namespace moonhalo
