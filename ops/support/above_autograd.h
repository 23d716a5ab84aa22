// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/library.h>

#include <vector>

#include "moonhalo/engine/tensor/shard_tensor_impl.h"

namespace moonhalo {

/// Operators of ATen that are intercepted above autograd, where their composites would run, by Moonhalo's kernels
/// for both plain tensors and ShardTensors: `const InterceptAboveAutograd interception(&intercept);`, where
/// `intercept` registers them (library.impl). One static object a file.
class InterceptAboveAutograd {
 public:
  explicit InterceptAboveAutograd(void (*intercept)(torch::Library&), const char* file = __builtin_FILE(),
                                  uint32_t line = __builtin_LINE()) {
    using c10::DispatchKey;
    // The last one is for calls without autograd, as in inference mode.
    for (const DispatchKey key : {DispatchKey::AutogradCPU, DispatchKey::AutogradCUDA, DispatchKey::AutogradPrivateUse1,
                                  DispatchKey::AutogradOther, kShardKey})
      intercept(libraries_.emplace_back(torch::Library::IMPL, "aten", key, file, line));
  }

 private:
  std::vector<torch::Library> libraries_;
};

}  // namespace moonhalo
