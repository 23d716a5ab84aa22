// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moonhalo {

/// The memory of a process beside its tensors once it has trained: libraries, code that they generate, work space.
struct ProcessMemory {
  int64_t base = 0;      ///< bytes of a process with one rank
  int64_t per_rank = 0;  ///< bytes that each further rank thread adds

  /// Bytes of a process of `ranks` rank threads.
  int64_t of(int64_t ranks) const { return base + (ranks - 1) * per_rank; }
};

/// Measures it in this process: runs small operators of each kind forward and backward, first on one rank thread, then
/// on two, because libraries load and generate code at their first use. Takes about 0.2 s. Not collective.
ProcessMemory measure_process_memory();

}  // namespace moonhalo
