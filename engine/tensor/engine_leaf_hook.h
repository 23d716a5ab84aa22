// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/autograd/function_hook.h>

#include <memory>

namespace moonhalo {

/// A hook of the engine's that is called when backward has added to the gradient of a leaf. Together with it the engine
/// registers one hook of C++ for the gradient before that. check_no_hooks takes neither for the program's. LibTorch
/// keeps one such hook of a leaf, so this one holds the program's, and calls it when the gradient is complete.
struct EngineLeafHook : torch::autograd::PostAccumulateGradHook {
  std::unique_ptr<torch::autograd::PostAccumulateGradHook> of_program;
};

}  // namespace moonhalo
