// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moonhalo::io {

/// Counts what reading datasets has cost this rank (the thread that asks) so far.
struct IoStats {
  int64_t asked = 0;      ///< bytes of the elements that reads asked for, which is bytes_read()
  int64_t stored = 0;     ///< bytes taken from files by positioned reads: plain data, and chunks as they are stored
  int64_t chunks = 0;     ///< chunks that were decoded
  int64_t inflated = 0;   ///< bytes of these after decoding
  int64_t exchanged = 0;  ///< bytes received from ranks that decoded them
  int64_t library = 0;    ///< bytes of elements that HDF5's own H5Dread delivered
};
IoStats& io_stats();

}  // namespace moonhalo::io
