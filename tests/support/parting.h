// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo::testing {

/// A program in which ranks part ways; every rank of the group must get an error that names both calls. Needs two
/// ranks.
struct PartingCase {
  const char* name;
  void (*program)(Communicator&);
  std::vector<std::string> texts;  ///< parts of every rank's message
};
const std::vector<PartingCase>& parting_cases();

/// Calls that differ between ranks in ways that are no parting: nothing may be thrown.
const std::vector<PartingCase>& harmless_cases();

}  // namespace moonhalo::testing
