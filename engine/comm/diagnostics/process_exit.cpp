// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/diagnostics/process_exit.h"

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

void abort_with_status(Communicator& world, const std::string& reason, int status) {
  if (auto* processes = dynamic_cast<AbortsWithStatus*>(&world)) return processes->abort(reason, status);
  world.abort(reason);
}

}  // namespace moonhalo
