// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <tuple>
#include <vector>

#include "moonhalo/ops/window/grid_sample.h"
#include "moonhalo/ops/window/window.h"

namespace moonhalo {

/// Says how to sample, in PyTorch's numbers for the words.
struct Sampler {
  enum class Mode : int64_t { kLinear, kNearest, kCubic };
  enum class Padding : int64_t { kZeros, kBorder, kReflection };
  Mode mode = Mode::kLinear;
  Padding padding = Padding::kZeros;
  bool align_corners = false;
  std::vector<int64_t> in, out;  ///< extents of the input's and the grid's space, global
  std::vector<double> bound;     ///< per dim of space
  double rounding = 0;           ///< of a position, relative to the extent

  /// Throws what grid_sample() throws, decided from global shapes.
  Sampler(const GridSample& options, at::IntArrayRef input, at::IntArrayRef grid, at::ScalarType input_dtype,
          at::ScalarType grid_dtype);

  /// The place that output row `o` of dim `d` of space reads if nothing is displaced, in pixels.
  double identity(size_t d, int64_t o) const;
  /// Positions may be off by rounding: accepted beyond the bound, and half of what is fetched beyond it.
  double tolerance(size_t d) const { return 1e-3 + rounding * static_cast<double>(in[d]); }
  /// Input rows of dim `d` that the outputs `out` may read.
  Interval rows_read(size_t d, const Interval& out) const;
  /// The largest displacement per dim of a part of the grid whose space begins at `begin`; what is not finite counts as
  /// infinite. [dims] float64.
  at::Tensor displacement(const at::Tensor& grid, const std::vector<int64_t>& begin) const;
  bool is_within_bound(const at::Tensor& displacement) const;
  bool is_within_bound(const at::Tensor& displacement, size_t d) const;
  /// ValueError if one of them is beyond its bound, or infinite.
  void check_displacement(const at::Tensor& displacement) const;
};

/// A part of the input (all that the part of the grid reads) whose space begins at `begin`: the outputs. Plain tensors,
/// CPU.
at::Tensor sample_part(const Sampler& sampler, const at::Tensor& input, const std::vector<int64_t>& begin,
                       const at::Tensor& grid);
/// Says which gradients are required, of the input and of the grid. One that is not is undefined.
using RequiredSamples = std::array<bool, 2>;
/// Gradients of that part of the input, whose shape is `part`, and of the grid. `input` is read for the grid's alone,
/// and may else be undefined.
std::tuple<at::Tensor, at::Tensor> sample_part_backward(const Sampler& sampler, const at::Tensor& grad,
                                                        const at::Tensor& input, at::IntArrayRef part,
                                                        const std::vector<int64_t>& begin, const at::Tensor& grid,
                                                        RequiredSamples required);

}  // namespace moonhalo
