// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo::testing {

/// A check of one verb that every backend must pass, for a group of any size. Collective; fails by EXPECT.
struct VerbCase {
  const char* name;
  void (*check)(Communicator&);
};
const std::vector<VerbCase>& verb_cases();

}  // namespace moonhalo::testing
