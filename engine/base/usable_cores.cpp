// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/base/usable_cores.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace moonhalo {

int64_t usable_core_count() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) return CPU_COUNT(&cores);
  return std::max(1U, std::thread::hardware_concurrency());
}

}  // namespace moonhalo
