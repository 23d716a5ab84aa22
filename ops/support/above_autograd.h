// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/library.h>

#include <vector>

#include "moonhalo/engine/tensor/shard_tensor_impl.h"

namespace moonhalo {

/// Operators of ATen that are met above autograd, where their composites would run, by Moonhalo's kernels for plain
/// tensors and ShardTensors alike: `const MeetAboveAutograd met(&meet);`, where `meet` registers them (library.impl).
/// One static object a file.
class MeetAboveAutograd {
 public:
  explicit MeetAboveAutograd(void (*meet)(torch::Library&), const char* file = __builtin_FILE(),
                             uint32_t line = __builtin_LINE()) {
    using c10::DispatchKey;
    // The last one is for calls without autograd, as in inference mode.
    for (const DispatchKey key : {DispatchKey::AutogradCPU, DispatchKey::AutogradCUDA, DispatchKey::AutogradPrivateUse1,
                                  DispatchKey::AutogradOther, kShardKey})
      meet(libraries_.emplace_back(torch::Library::IMPL, "aten", key, file, line));
  }

 private:
  std::vector<torch::Library> libraries_;
};

}  // namespace moonhalo
