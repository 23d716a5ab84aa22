// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace moonhalo {

/// Is called for the work that kernels of Moonhalo report (note_work). Not collective.
class WorkListener {
 public:
  virtual ~WorkListener() = default;
  /// A kernel has run, or would have: `macs` multiplications with an addition, `bytes` that are read and written.
  virtual void worked(const char* kernel, int64_t macs, int64_t bytes) = 0;
};

/// Sets the listener of this rank, null for none, and returns the one before. Not collective.
WorkListener* listen_to_work(WorkListener* listener);

/// Says what a kernel of Moonhalo does, whether it computes or its tensors are fake: `kernel` is its name,
/// "grid_sample", which lives as long as the process. Costs a load and a branch without a listener. Not collective.
void note_work(const char* kernel, int64_t macs, int64_t bytes);

/// The bytes of these tensors together; undefined ones have none.
int64_t memory_bytes(at::TensorList tensors);

}  // namespace moonhalo
