// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/base/io_stats.h"

#include "moonhalo/io/base/io_context.h"

namespace moonhalo::io {

IoStats& io_stats() { return io_context->stats; }

}  // namespace moonhalo::io
