// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/ending.h"

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

void abort_with_status(Communicator& world, const std::string& reason, int status) {
  if (auto* processes = dynamic_cast<EndsProcesses*>(&world)) return processes->abort(reason, status);
  world.abort(reason);
}

}  // namespace moonhalo
