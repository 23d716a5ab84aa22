// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

/// The same as reduce_elements (reduction_kernels.h) makes of these, on any device by LibTorch's operators: along
/// their tree, half types accumulated in float and rounded once, NaN wins, sums of bools are "or". All have one shape
/// and dtype.
at::Tensor reduced_in_order(ReduceOp op, const std::vector<at::Tensor>& parts);

}  // namespace moonhalo
