// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace moonhalo {

/// A weighted sum of neighbouring rows along one dim: y[i] = sum over k of weights[k] * x[i + offsets[k]].
struct Stencil {
  int64_t dim = 0;         ///< negative counts from the end
  int64_t derivative = 1;  ///< which derivative, at least 0; approximated by central differences
  int64_t order = 2;       ///< of accuracy, even: the error is proportional to spacing^order
  double spacing = 1;      ///< of the rows; the weights are divided by spacing^derivative
  /// Values outside of the domain: "zeros", "circular", "reflect" (the end rows are not repeated), "replicate"; or
  /// "one_sided": rows near the ends use formulas of the same order from rows inside. The default is one_sided, or
  /// zeros if weights are given.
  std::optional<std::string> boundary = std::nullopt;
  /// Offsets and weights of the caller, used unchanged instead of derivative, order and spacing. Throws ValueError if
  /// one of these is not at its default, and with one_sided.
  std::optional<std::vector<int64_t>> offsets = std::nullopt;
  std::optional<std::vector<double>> weights = std::nullopt;
};

/// Returns weights w with f^(derivative)(at) ~ sum of w[k] * f(places[k]), exact for polynomials of fewer than
/// places.size() coefficients. Source: B. Fornberg, Generation of Finite Difference Formulas on Arbitrarily Spaced
/// Grids, Mathematics of Computation 51, 1988. Throws ValueError for fewer than derivative + 1 places and for equal
/// places. Not collective.
std::vector<double> finite_difference_weights(int64_t derivative, const std::vector<double>& places, double at = 0);

/// Applies the stencil along a dim of a floating-point or complex tensor with any number of dims. The result has the
/// shape of `x`, and of a ShardTensor its sharding. If `dim` is sharded, a rank receives all rows from the lowest to
/// the highest offset (0 included), from several blocks if needed (collective over the mesh). Other shardings need no
/// communication; a Partial sum stays a Partial. Linear: differentiable any number of times, also in forward mode.
/// Throws ValueError for an unknown boundary, an odd order, and a dim too short for one_sided (derivative + order
/// rows). Operator: `moonhalo::stencil(x, *, dim, derivative, order, spacing, boundary, offsets, weights)`.
at::Tensor stencil(const at::Tensor& x, const Stencil& options);

/// Returns the first derivatives along `dims`, one tensor per dim. `spacing` has one number, or one per dim. `boundary`
/// is as in Stencil. The operators of this and the next two functions are `moonhalo::stencil_gradient`,
/// `moonhalo::divergence` and `moonhalo::laplacian` (x or fields, *, dims, order, spacing, boundary). Tensors,
/// errors and messages are those of `stencil`: collective over the mesh if a dim of `dims` is sharded.
std::vector<at::Tensor> stencil_gradient(const at::Tensor& x, at::IntArrayRef dims, int64_t order = 2,
                                         at::ArrayRef<double> spacing = 1.0,
                                         const std::optional<std::string>& boundary = std::nullopt);
/// Returns the sum of the derivatives of fields[i] along dims[i]; all fields have one shape. Collective as
/// stencil_gradient.
at::Tensor divergence(at::TensorList fields, at::IntArrayRef dims, int64_t order = 2,
                      at::ArrayRef<double> spacing = 1.0, const std::optional<std::string>& boundary = std::nullopt);
/// Returns the sum of the second derivatives along `dims`, of the shape of `x`. Collective as stencil_gradient.
at::Tensor laplacian(const at::Tensor& x, at::IntArrayRef dims, int64_t order = 2, at::ArrayRef<double> spacing = 1.0,
                     const std::optional<std::string>& boundary = std::nullopt);

}  // namespace moonhalo
