// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/base/io_stats.h"

namespace moonhalo::io {

IoStats& io_stats() {
  thread_local IoStats stats;
  return stats;
}

}  // namespace moonhalo::io
