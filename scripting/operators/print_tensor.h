// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace moonhalo::scripting {

/// Text of a tensor as PyTorch prints it: at most 1,000 elements in full, larger ones by the three
/// outer elements of each dimension. A ShardTensor shows its global shape, its placements and this
/// rank's block: nothing is communicated.
std::string tensor_text(const at::Tensor& tensor);

}  // namespace moonhalo::scripting
