// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/agreement.h"

#include <c10/util/Exception.h>

#include <vector>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

void check_alike(Communicator& world, const char* op, const char* settings, const std::string& setting) {
  if (world.size() == 1 || world.is_fake()) return;
  const std::vector<std::string> all = world.all_gather_strings(setting);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    TORCH_CHECK_VALUE(all[rank] == all[0], op, ": ranks 0 and ", rank, " want different ", settings, "\n  have  rank 0: ", all[0],
                      "; rank ", rank, ": ", all[rank], "\n  fix   give every rank the same");
  }
}

}  // namespace moonhalo
