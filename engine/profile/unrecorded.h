// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "moonhalo/engine/base/work_note.h"
#include "moonhalo/engine/comm/comm_observer.h"
#include "moonhalo/engine/comm/stats_pause.h"
#include "moonhalo/engine/exchange/rank_shares.h"
#include "moonhalo/engine/profile/memory.h"
#include "moonhalo/engine/profile/profile_context.h"

namespace moonhalo {

class ShardSpec;

/// While it exists, what records this rank (a profile, a tape, watches of steps and of specs) sees nothing, and others
/// may record. Memory is counted. Not collective.
class Unrecorded {
 public:
  Unrecorded();
  ~Unrecorded();
  Unrecorded(const Unrecorded&) = delete;
  Unrecorded& operator=(const Unrecorded&) = delete;

 private:
  ProfileContext profile_;
  CommObserver* observer_;
  WorkListener* listener_;
  std::function<void(const ShardSpec&)> spec_watch_;
  SharesWatch shares_watch_;
};

/// Unrecorded, and in a dry run messages and the memory of fake tensors do not count either: what is called meanwhile
/// is not what this rank does. Not collective.
class Uncounted {
  ScopedStatsPause sent_;
  Unrecorded recorded_;
  MemoryCount memory_;
};

}  // namespace moonhalo
