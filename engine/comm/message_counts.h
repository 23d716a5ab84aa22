// SPDX-License-Identifier: Apache-2.0
// This counts the messages of a rank in collectives whose ranks send messages, and says which way these go.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "moonhalo/engine/comm/sum_tree.h"

namespace moonhalo {

/// Up to this size of all ranks' data together, an all_reduce is one all-gather.
inline constexpr size_t kGatherBytes = 64 * 1024;
/// Up to this size of a part, those of an all_to_all are sent together.
inline constexpr int64_t kShortPartBytes = 1024;

/// The messages of a rank that sends all it has by way of others.
inline int rounds_of(int size) { return static_cast<int>(std::bit_width(static_cast<unsigned>(size - 1))); }

/// True if an all_to_all takes fewer messages so. `largest`: elements of the largest part; negative if unknown.
inline bool goes_in_rounds(int size, int64_t largest, size_t item) {
  return largest >= 0 && largest * static_cast<int64_t>(item) <= kShortPartBytes && rounds_of(size) < size - 1;
}

inline int64_t messages_of_reduce_scatter(const SumPlan& plan, int rank) {
  if (plan.direct()) return plan.ranks() - 1;
  const std::vector<SumStep> steps = plan.steps(rank);
  return std::count_if(steps.begin(), steps.end(), [](const SumStep& step) { return step.send_to >= 0; });
}

inline int64_t messages_of_all_reduce(const SumPlan& plan, int rank, size_t bytes) {
  const bool short_ones = bytes * plan.ranks() <= kGatherBytes;
  return rounds_of(plan.ranks()) + (short_ones ? 0 : messages_of_reduce_scatter(plan, rank));
}

/// A broadcast is a binomial tree; `place` counts from its root on.
inline int64_t messages_of_broadcast(int size, int place) {
  int64_t messages = 0;
  for (int step = static_cast<int>(std::bit_ceil(static_cast<unsigned>(place + 1))); place + step < size; step *= 2)
    ++messages;
  return messages;
}

}  // namespace moonhalo
