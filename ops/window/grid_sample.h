// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace moonhalo {

struct GridSample {
  std::string mode = "bilinear";       ///< "bilinear" (of 3 dims: trilinear), "nearest", "bicubic" (2 dims only)
  std::string padding_mode = "zeros";  ///< "zeros", "border", "reflection"
  bool align_corners = false;
  /// The greatest distance, in input pixels, of a point from its identity position, per dim of space from the first
  /// (rows, columns) on; one number stands for all. The identity position of an output is where affine_grid puts it for
  /// the identity.
  std::optional<std::vector<double>> max_displacement = std::nullopt;
};

/// Samples input [batch, channels, H, W] at grid [batch, h, w, 2] (5-D: [.., D, H, W] at [.., d, h, w, 3]), whose last
/// dim counts from the innermost dim of space, in [-1, 1]: [batch, channels, h, w]. As PyTorch's grid_sample, once
/// differentiable in both.
///
/// Without a bound the input's space is gathered. With `max_displacement` a rank borrows only the rows and columns that
/// its outputs can reach, so every tensor may be cut in any way; outputs are cut as the grid is, and where the grid is
/// whole as the input is (boundaries at the same place of the domain). A point beyond the bound (or NaN) is a
/// ValueError on every rank, found by one all-reduce of a number per dim before anything is computed: a bound that is
/// too small never gives a wrong number. Points that are not finite are refused whatever the bound, an infinite one
/// too.
/// With a bound: CPU tensors only (ShardTensors of another mesh are a NotImplementedError), float32 and float64.
/// Without one: what LibTorch takes. Plain tensors with a bound run the same kernels, so that cut and whole fields
/// agree at pixels too, where the derivative's side is a matter of the last bit. Collective.
/// The operator `moonhalo::grid_sample(input, grid, mode, padding_mode, align_corners, *, max_displacement)`.
at::Tensor grid_sample(const at::Tensor& input, const at::Tensor& grid, const GridSample& options = {});

}  // namespace moonhalo
