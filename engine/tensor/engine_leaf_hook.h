// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/autograd/function_hook.h>

namespace moonhalo {

/// A hook of the engine's that is called when backward has added to the gradient of a leaf. Together with it the engine
/// registers one hook of C++ for the gradient before that. check_no_hooks takes neither for the program's.
struct EngineLeafHook : torch::autograd::PostAccumulateGradHook {};

}  // namespace moonhalo
