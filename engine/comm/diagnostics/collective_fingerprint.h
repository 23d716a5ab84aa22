// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"

namespace moonhalo {

/// Equal on all ranks that make the same call of a verb. Lists that differ from rank to rank do not count.
inline uint64_t fingerprint_of_call(const CollectiveCall& call) {
  uint64_t tag =
      combine_fingerprint(combine_fingerprint(static_cast<uint64_t>(call.kind) + 1, call.number), call.mark.tag);
  tag =
      combine_fingerprint(combine_fingerprint(tag, static_cast<uint64_t>(call.op)), static_cast<uint64_t>(call.dtype));
  tag = combine_fingerprint(combine_fingerprint(tag, static_cast<uint64_t>(call.root)),
                            static_cast<uint64_t>(call.elements));
  for (const int64_t count : call.counts) tag = combine_fingerprint(tag, static_cast<uint64_t>(count));
  return tag;
}

}  // namespace moonhalo
