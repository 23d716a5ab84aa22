// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace moonhalo {

/// Few numbers that an operator needs in every call of it, such as row numbers and weights, as a tensor of one dim with
/// the device and dtype of `options`. A device gets each list once for each of its streams, since the host may have to
/// wait for every copy. Not to be written.
at::Tensor constant_on(const at::TensorOptions& options, const std::vector<int64_t>& values);
at::Tensor constant_on(const at::TensorOptions& options, const std::vector<double>& values);

}  // namespace moonhalo
