// SPDX-License-Identifier: Apache-2.0
#include "engine/one_heap.h"

#include <malloc.h>

#include <cstdlib>

namespace moonhalo {

void share_one_heap() {
  if (std::getenv("MALLOC_ARENA_MAX") == nullptr) mallopt(M_ARENA_MAX, 1);
}

}  // namespace moonhalo
