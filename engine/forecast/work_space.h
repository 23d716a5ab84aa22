// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <string>

namespace moonhalo {

/// Bytes that LibTorch's kernel of the CPU holds beside the results of a call, and frees before it ends. `arguments`
/// and `results` are meta tensors.
using WorkSpaceRule = int64_t (*)(const torch::jit::Stack& arguments, const torch::jit::Stack& results);

/// The rule of an operator whose shapes come from its kernel for meta tensors, or null where it holds nothing. `name`:
/// "aten::add", of all its overloads. Not collective.
WorkSpaceRule find_work_space_rule(const std::string& name);

/// Bytes of the copy that a kernel makes of a tensor which is not contiguous in its memory format, else 0.
int64_t bytes_of_contiguous_copy(const at::Tensor& tensor);
/// The same of a kernel that needs the last dim to be the fastest.
int64_t bytes_of_row_major_copy(const at::Tensor& tensor);

}  // namespace moonhalo
