// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/base/boot_id.h"

#include <fstream>

namespace moonhalo {

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

}  // namespace moonhalo
