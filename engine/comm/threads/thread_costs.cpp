// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/threads/thread_costs.h"

#include "moonhalo/engine/comm/threads/thread_group.h"

namespace moonhalo {

VerbCost thread_cost(CommStats::Kind verb, int64_t bytes, int ranks) {
  if (ranks == 1) return {};
  const auto fits_in_slot = [](int64_t size) { return size <= static_cast<int64_t>(CollectiveSlot::kInlineBytes); };
  switch (verb) {
    case CommStats::kAllReduce:
      // Short ones are copied into the slot, and each rank adds all of them. Of long ones it reads its share of all
      // ranks' tensors, and writes it into all of them.
      if (fits_in_slot(bytes)) return {.barriers = 1, .copied = (ranks + 2) * bytes};
      return {.barriers = 2, .copied = 2 * bytes};
    case CommStats::kAllGather:
      return {.barriers = fits_in_slot(bytes / ranks) ? 1 : 2, .copied = 2 * bytes};
    case CommStats::kReduceScatter:
      return {.barriers = 2, .copied = bytes + bytes / ranks};
    case CommStats::kAllToAll:
      return {.barriers = 2, .copied = 2 * bytes};
    case CommStats::kBroadcast:
      return {.barriers = fits_in_slot(bytes) ? 1 : 2, .copied = 2 * bytes};
    case CommStats::kExchange:
      return {.copied = 2 * bytes};
    default:
      return {.barriers = 1};
  }
}

}  // namespace moonhalo
