// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "moonhalo/engine/exchange/halo_source.h"
#include "moonhalo/ops/window/halo_split.h"

namespace moonhalo {

/// One rank's part of a convolution: fetch the rows that its outputs need, convolve part by part, crop and add. All
/// tensors are local and plain; both verbs are collective over the mesh where there are `maps`. `source` may hold
/// halos of `input` (LocalCall::halo_source).
struct LocalConv {
  /// One call of LibTorch's kernel. Its result has `uncropped` rows per spatial dim, of which `crop` come before the
  /// outputs; a plain window's result is not cropped.
  struct Call : HaloSplit::Part {
    std::vector<int64_t> padding, crop, uncropped;
  };
  std::vector<int64_t> stride, dilation, output_padding;  ///< of the kernel, per spatial dim
  bool transposed = false;
  int64_t groups = 1;
  Box block;                     ///< this rank's outputs, any extent may be zero
  std::optional<Call> interior;  ///< the parts of a HaloSplit
  std::vector<Call> slabs;
  std::vector<Box> halo_rows;  ///< slab i is computed from fetched box i, which maps[i] brings
  HaloMaps maps;

  at::Tensor forward(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                     const HaloSource& source = {}) const;
  /// Gradients of input (owned rows, gradients of halo rows added by their owners), weight and bias, as far as
  /// `mask` asks for them; sums over this rank's outputs.
  std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& grad_output, const at::Tensor& input,
                                                          const at::Tensor& weight, std::array<bool, 3> mask,
                                                          const HaloSource& source = {}) const;

 private:
  using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
  at::Tensor convolve(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                      at::IntArrayRef padding) const;
  Gradients convolve_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                              at::IntArrayRef padding, std::array<bool, 3> mask) const;
  at::Tensor result_of(const Call& call, const at::Tensor& x, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias) const;
  Gradients gradients_of(const Call& call, const at::Tensor& grad_output, const at::Tensor& x, const at::Tensor& weight,
                         std::array<bool, 3> mask) const;
  at::Tensor bias_alone(const at::Tensor& input, const std::optional<at::Tensor>& bias) const;
};

}  // namespace moonhalo
