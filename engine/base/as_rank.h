// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "moonhalo/engine/base/rank_context.h"

namespace moonhalo {

/// While one lives, its thread is the rank of another context: what the engine remembers is read from there and kept
/// there. One thread at a time. (A specialization, because a context gives its rights to RankLocal alone.)
template <>
class RankLocal<RankContext> {
 public:
  explicit RankLocal(RankContext& context) : before_(std::exchange(RankContext::of_thread_, &context)) {}
  ~RankLocal() { RankContext::of_thread_ = before_; }
  RankLocal(const RankLocal&) = delete;
  RankLocal& operator=(const RankLocal&) = delete;

 private:
  RankContext* before_;
};
using AsRank = RankLocal<RankContext>;

}  // namespace moonhalo
