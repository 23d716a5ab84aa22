// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace moonhalo {

/// A convolution whose tensors are row-major. Stride, padding and dilation have one entry for each dim of the field.
struct ConvolutionShape {
  std::vector<int64_t> x, weight, y;  ///< sizes of the input, the weight and the result
  std::vector<int64_t> stride, padding, dilation, output_padding;
  int64_t groups = 1;
  bool transposed = false;
  at::ScalarType dtype = at::kFloat;
};

/// Bytes that LibTorch's kernels of the CPU hold beside the results of a convolution, and free before they end, on this
/// processor with the number of threads that is set. Tests find them within 3 % of what a kernel takes, in float32 and
/// float64. Not so near: few channels in groups, dilation together with stride, and types of two bytes, whose kernels
/// differ from one processor to the next. Not collective.
int64_t convolution_work_space(const ConvolutionShape& shape);
/// The same of the derivatives. At least one is asked for.
int64_t convolution_backward_work_space(const ConvolutionShape& shape, bool for_input, bool for_weight);

/// The channels of a block in the copies on which oneDNN computes convolutions here: 16 with AVX-512, else 8. Obeys the
/// limit of oneDNN, ONEDNN_MAX_CPU_ISA. Not collective.
int64_t channels_of_block();

}  // namespace moonhalo
