// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/communicator_backend.h"

#include <c10/util/Exception.h>

namespace moonhalo {

CommunicatorBackend& backend_of(Communicator& group) {
  auto* backend = dynamic_cast<CommunicatorBackend*>(&group);
  TORCH_INTERNAL_ASSERT(backend != nullptr, "a communicator that is not a CommunicatorBackend: ", group.backend());
  return *backend;
}

}  // namespace moonhalo
