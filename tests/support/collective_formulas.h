// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo::testing {

/// The rounds after which every rank may have data of all: log2, rounded up.
int rounds_of(int ranks);

/// A collective, and the formulas of what its ranks send (docs/clusters.md).
struct CountedVerb {
  const char* name;
  void (*call)(Communicator&);
  /// Bytes that the table counts in: of a rank's tensor, of all ranks' together where it has a part of these.
  int64_t (*unit)(int ranks);
  int (*messages)(int ranks);
  double (*bytes)(int ranks);  ///< the most that a rank sends, in these units; negative: less than that
};

/// all_reduce of long tensors is the second.
const std::vector<CountedVerb>& counted_verbs();

}  // namespace moonhalo::testing
