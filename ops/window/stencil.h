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
  int64_t derivative = 1;  ///< at least 0; with `order` even, central differences are made of them
  int64_t order = 2;       ///< of accuracy: the error shrinks as spacing^order
  double spacing = 1;      ///< of the rows; the differences' weights are divided by spacing^derivative
  /// Beyond the ends: "zeros", "circular", "reflect" (the end rows are not repeated), "replicate", or "one_sided": rows
  /// near the ends take formulas of the same order from rows inside. Default: one_sided; for the caller's weights:
  /// zeros.
  std::optional<std::string> boundary = std::nullopt;
  /// The caller's weights, taken unchanged, instead of derivative, order and spacing (ValueError if one of these is
  /// not at its default); not with one_sided.
  std::optional<std::vector<int64_t>> offsets = std::nullopt;
  std::optional<std::vector<double>> weights = std::nullopt;
};

/// Weights w with f^(derivative)(at) ~ sum of w[k] * f(places[k]): exact for polynomials of fewer than places.size()
/// coefficients. Source: B. Fornberg, Generation of Finite Difference Formulas on Arbitrarily Spaced Grids, Mathematics
/// of Computation 51, 1988. ValueError for fewer than derivative + 1 places or equal ones.
std::vector<double> finite_difference_weights(int64_t derivative, const std::vector<double>& places, double at = 0);

/// The stencil along a dim of a floating or complex tensor of any rank; the result has its shape and, of a ShardTensor,
/// its cut. A cut of `dim` borrows the rows from the lowest to the highest offset (0 among them), those between that no
/// offset names too, over several blocks if need be (collective); other cuts are local, a sum over ranks (Partial)
/// stays one. Linear: differentiable any number of times, forward-mode too.
/// ValueError for an unknown boundary, an odd order, or a dim too short for one_sided (derivative + order rows).
/// The operator `moonhalo::stencil(x, *, dim, derivative, order, spacing, boundary, offsets, weights)`.
at::Tensor stencil(const at::Tensor& x, const Stencil& options);

/// The first derivatives along `dims`: as many tensors. One spacing for all, or one each. `boundary` as in Stencil.
/// The operators `moonhalo::stencil_gradient`, `moonhalo::divergence` and `moonhalo::laplacian` (x or fields, *, dims,
/// order, spacing, boundary).
std::vector<at::Tensor> stencil_gradient(const at::Tensor& x, at::IntArrayRef dims, int64_t order = 2,
                                         at::ArrayRef<double> spacing = 1.0,
                                         const std::optional<std::string>& boundary = std::nullopt);
/// The sum of the derivatives of fields[i] along dims[i].
at::Tensor divergence(at::TensorList fields, at::IntArrayRef dims, int64_t order = 2,
                      at::ArrayRef<double> spacing = 1.0, const std::optional<std::string>& boundary = std::nullopt);
/// The sum of the second derivatives along `dims`.
at::Tensor laplacian(const at::Tensor& x, at::IntArrayRef dims, int64_t order = 2, at::ArrayRef<double> spacing = 1.0,
                     const std::optional<std::string>& boundary = std::nullopt);

}  // namespace moonhalo
