// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/engine/comm/call_tag.h"

namespace moonhalo {

/// Equal on all ranks that make the same call of a verb. Lists that differ from rank to rank do not count.
inline uint64_t tag_of_call(const VerbCall& call) {
  uint64_t tag = combine_tag(combine_tag(static_cast<uint64_t>(call.kind) + 1, call.number), call.mark.tag);
  tag = combine_tag(combine_tag(tag, static_cast<uint64_t>(call.op)), static_cast<uint64_t>(call.dtype));
  tag = combine_tag(combine_tag(tag, static_cast<uint64_t>(call.root)), static_cast<uint64_t>(call.elements));
  for (const int64_t count : call.counts) tag = combine_tag(tag, static_cast<uint64_t>(count));
  return tag;
}

}  // namespace moonhalo
