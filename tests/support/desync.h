// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo::testing {

/// A program in which ranks diverge; every rank of the group must get an error that names both calls. Needs two
/// ranks.
struct DesyncCase {
  const char* name;
  void (*program)(Communicator&);
  std::vector<std::string> texts;  ///< parts of every rank's message
};
const std::vector<DesyncCase>& desync_cases();

/// Calls that differ between ranks in ways that are not a desync: nothing may be thrown.
const std::vector<DesyncCase>& harmless_cases();

}  // namespace moonhalo::testing
