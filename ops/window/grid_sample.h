// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace moonhalo {

/// Settings of grid_sample, with PyTorch's names.
struct GridSample {
  std::string mode = "bilinear";       ///< "bilinear" (of 3 dims: trilinear), "nearest", "bicubic" (2 dims only)
  std::string padding_mode = "zeros";  ///< "zeros", "border", "reflection"
  bool align_corners = false;          ///< true: -1 and 1 are the centres of the outer pixels; false: their edges
  /// The largest distance of a sampling point from its identity position, in input pixels, per spatial dim (rows,
  /// columns); one number applies to all dims. The identity position of an output pixel is its position in affine_grid
  /// of the identity.
  std::optional<std::vector<double>> max_displacement = std::nullopt;
};

/// Samples input [batch, channels, H, W] at grid [batch, h, w, 2] (5-D: [batch, channels, D, H, W] at [batch, d, h, w,
/// 3]) and returns [batch, channels, h, w]. The last dim of the grid has coordinates in [-1, 1], innermost dim first.
/// The semantics are those of PyTorch's grid_sample. Once differentiable in both tensors.
///
/// Without max_displacement the spatial dims of the input are gathered. With it a rank receives only the halo that its
/// outputs can reach, so every tensor may be sharded in any way. Outputs are sharded as the grid is; where the grid is
/// not sharded, as the input is (boundaries at the same fractions of the domain). A point beyond the bound, or a point
/// that is not finite, is a ValueError on every rank, also with an infinite bound. One all-reduce of a number per dim
/// finds it before anything is computed, so a bound that is too small never gives wrong values. With a bound: CPU
/// tensors only (ShardTensors of another device throw NotImplementedError), float32 and float64. Without a bound: as
/// LibTorch. Plain tensors with a bound use the same kernels, so sharded and unsharded fields agree also at pixel
/// positions, where the last bit decides the side of the derivative. Collective over the mesh. Operator:
/// `moonhalo::grid_sample(input, grid, mode, padding_mode, align_corners, *, max_displacement)`.
at::Tensor grid_sample(const at::Tensor& input, const at::Tensor& grid, const GridSample& options = {});

}  // namespace moonhalo
