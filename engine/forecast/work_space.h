// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace moonhalo {

/// Bytes that LibTorch's kernel of the CPU holds beside the results of a call, and frees before it ends, of an operator
/// whose shapes come from its kernel for meta tensors. `arguments` and `results` are meta tensors. Not collective.
int64_t kernel_work_space(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                          const torch::jit::Stack& results);

}  // namespace moonhalo
