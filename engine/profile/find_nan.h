// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace moonhalo {

/// Where a tensor is NaN, as far as this rank has it.
struct NanPlace {
  int64_t count = 0, elements = 0;    ///< of this rank's block
  std::vector<int64_t> first, shape;  ///< the first index, of the whole tensor
  bool block = false;                 ///< the tensor is a ShardTensor
  /// "3 of the 12 elements of this rank's block are NaN, the first at [5, 0] of [16, 4]"
  std::string text() const;
};

/// Looks at this rank's block alone: nothing is sent. Nothing for tensors without NaN, of integers, or without memory.
std::optional<NanPlace> find_nan(const at::Tensor& tensor);

}  // namespace moonhalo
