// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moonhalo {

/// The memory of a process beside its tensors once it has trained: libraries, code that they generate, work space.
struct ProcessMemory {
  int64_t base = 0;      ///< bytes of a process with one rank
  int64_t per_rank = 0;  ///< bytes that each further rank thread adds
  int64_t idle = 0;      ///< bytes of this process after that, without ranks and free memory

  /// Bytes of a process of `ranks` rank threads.
  int64_t of(int64_t ranks) const { return base + (ranks - 1) * per_rank; }
};

/// Gives memory that is free back to the system. What a process uses from then on is seen in its resident memory.
/// Not collective.
void release_free_memory();

/// Measures it in this process: runs small operators of each kind forward and backward, first on one rank thread, then
/// on two, because libraries load and generate code at their first use. Takes about 0.2 s. Not collective.
ProcessMemory measure_process_memory();

}  // namespace moonhalo
