// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "moonhalo/engine/exchange/interval_map.h"
#include "moonhalo/engine/tensor/tensor_halos.h"
#include "moonhalo/ops/window/conv_spread.h"
#include "moonhalo/ops/window/conv_strips.h"

namespace moonhalo {

/// One rank's part of a convolution: borrow the rows that its outputs need, convolve, crop. All
/// tensors are local and plain; both verbs are collective over the mesh where there is a `halo`, a `spread` or
/// there are `strips`. `cache` keeps halos of the ShardTensor whose block `input` is.
struct LocalConv {
  /// Of the local kernel, per spatial dim.
  std::vector<int64_t> stride, padding, dilation, output_padding;
  bool transposed = false;
  int64_t groups = 1;
  std::shared_ptr<const IntervalMap> halo;  ///< null: no spatial dim is cut, or the strips do it
  std::optional<ConvStrips> strips;         ///< the edges are done apart
  std::optional<ConvSpread> spread;         ///< transposed, forward: instead of the halo
  std::vector<int64_t> output_shape;        ///< of this rank's block, any extent may be zero
  /// Transposed: the kernel's result has `uncropped` rows, of which `crop_before` come before the
  /// block.
  std::vector<int64_t> crop_before, uncropped;

  at::Tensor forward(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                     const HaloCachePtr& cache = {}) const;
  /// Gradients of input (owned rows, gradients of borrowed rows added by their owners), weight and
  /// bias, as far as `mask` asks for them; sums over this rank's outputs.
  std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& grad_output, const at::Tensor& input,
                                                          const at::Tensor& weight, std::array<bool, 3> mask,
                                                          const HaloCachePtr& cache = {}) const;

 private:
  using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
  at::Tensor convolve(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                      at::IntArrayRef local_padding) const;
  Gradients convolve_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                              at::IntArrayRef local_padding, std::array<bool, 3> mask) const;
  at::Tensor bias_alone(const at::Tensor& input, const std::optional<at::Tensor>& bias) const;
  at::Tensor uncrop(const at::Tensor& grad_output) const;
  at::Tensor forward_in_strips(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                               const HaloCachePtr& cache) const;
  at::Tensor forward_in_parts(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                              const HaloCachePtr& cache) const;
  Gradients backward_in_turns(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
                              std::array<bool, 3> mask, const HaloCachePtr& cache) const;
  Gradients backward_in_strips(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
                               std::array<bool, 3> mask, const HaloCachePtr& cache) const;
  std::vector<int64_t> padding_with(const std::vector<int64_t>& of_cut_dims) const;
};

}  // namespace moonhalo
