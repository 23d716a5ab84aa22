// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "engine/interval_map.h"

namespace moonhalo {

/// One rank's part of a convolution: borrow the rows that its outputs need, convolve, crop. All tensors are local and
/// plain; both verbs are collective over the mesh of `halo` where there is one.
struct LocalConv {
  std::vector<int64_t> stride, padding, dilation, output_padding;  ///< of the local kernel, per spatial dim
  bool transposed = false;
  int64_t groups = 1;
  std::shared_ptr<const IntervalMap> halo;  ///< null: no spatial dim is cut
  std::vector<int64_t> output_shape;        ///< of this rank's block, any extent may be zero
  /// Transposed: the kernel's result has `uncropped` rows, of which `crop_before` come before the block.
  std::vector<int64_t> crop_before, uncropped;

  at::Tensor forward(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) const;
  /// Gradients of input (owned rows, gradients of borrowed rows added by their owners), weight and bias, as far as
  /// `mask` asks for them; sums over this rank's outputs.
  std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& grad_output, const at::Tensor& input,
                                                          const at::Tensor& weight, std::array<bool, 3> mask) const;
};

}  // namespace moonhalo
