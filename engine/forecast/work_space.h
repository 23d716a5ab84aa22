// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace moonhalo {

/// Bytes that LibTorch's kernel of the CPU holds beside the results of a call, and frees before it ends, of an operator
/// whose shapes come from its kernel for meta tensors. `arguments` and `results` are meta tensors. Not collective.
int64_t kernel_work_space(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                          const torch::jit::Stack& results);

/// Bytes of the copy that a kernel makes of a tensor which is not contiguous in its memory format, else 0.
int64_t bytes_of_contiguous_copy(const at::Tensor& tensor);

}  // namespace moonhalo
