// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "moonhalo/engine/base/rank_context.h"

namespace moonhalo {

/// While one lives, its thread is the rank of another context: what the engine remembers is read from there and kept
/// there. One thread at a time.
class AsRank {
 public:
  explicit AsRank(RankContext& context) : before_(std::exchange(RankContext::of_thread_, &context)) {}
  ~AsRank() { RankContext::of_thread_ = before_; }
  AsRank(const AsRank&) = delete;
  AsRank& operator=(const AsRank&) = delete;

 private:
  RankContext* before_;
};

}  // namespace moonhalo
