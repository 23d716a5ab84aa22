// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "moonhalo/engine/base/base_context.h"
#include "moonhalo/engine/exchange/halo_options.h"

namespace moonhalo {

class DeviceMesh;
class LeaveOutEqualSteps;
class Redistribution;
class ShardSpec;

/// One rank's state of exchanges.
struct ExchangeContext {
  using SpecPair = std::pair<const ShardSpec*, const ShardSpec*>;
  struct HashPair {
    size_t operator()(const SpecPair& pair) const {
      return std::hash<const void*>()(pair.first) * 31 + std::hash<const void*>()(pair.second);
    }
  };
  using Redistributions = std::unordered_map<SpecPair, std::shared_ptr<const Redistribution>, HashPair>;
  Redistributions redistributions;                                                   ///< redistribution_cache.h
  HaloTimes halo_times;                                                              ///< halo_options.h
  HaloEvents* halo_events = nullptr;                                                 ///< of the RecordHalo that lives
  bool warned_of_roundings = false;                                                  ///< replicated_values.cpp
  bool joins_equal_copies = false;                                                   ///< equal_copies.h
  int64_t equal_copies = 1;                                                          ///< equal_copies.h
  std::function<void(const DeviceMesh*, const std::vector<int64_t>&)> shares_watch;  ///< rank_shares.h
  const LeaveOutEqualSteps* equal_steps = nullptr;                                   ///< equal_steps.h
};
inline const RankLocal<ExchangeContext> exchange_context;

}  // namespace moonhalo
