// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>
#include <vector>

namespace moonhalo {

/// Says what a query sees, per spatial dim. One number (or an empty list, for the default) stands for all dims.
struct Neighborhood {
  std::vector<int64_t> window;  ///< keys per query along the dim, odd or even, at most the dim's extent / dilation
  std::vector<int64_t> stride = {1};      ///< so many neighbouring queries share a window; at most `window`
  std::vector<int64_t> dilation = {1};    ///< rows of the dim from one key to the next
  std::vector<bool> is_causal = {false};  ///< along this dim a query sees itself and what lies before
};

/// Neighbourhood attention along 1 to 3 spatial dims: softmax(scale * q k^T) v over the keys of each query's window.
///
///     query, key   [batch, dims..., heads, head_dim]     float32, float64, bfloat16, on a GPU float16 (summed in
///                  float32)
///     value        [batch, dims..., heads, value_dim]
///     output       [batch, dims..., heads, value_dim]
///     logsumexp    [batch, dims..., heads], float32 (float64 for float64): log of the sum of exp(scale * q.k) over the
///                  window
///
/// A window holds window / 2 keys before the query and the rest behind, and is shifted at the borders so that every
/// query sees a full one (along causal dims fewer at the start). With a dilation the rows i, i + dilation, ... form a
/// domain of their own; with a stride, each run of `stride` queries there takes the window of its middle one (causal:
/// of its last, up to the query itself). `scale` is 1 / sqrt(head_dim) if not given.
///
/// Any ShardTensors: batch and heads are local, cuts of the dims borrow the keys and values that their windows reach,
/// both in one exchange (collective). Differentiable twice, in all tensors and both results; a third derivative is an
/// error.
/// ValueError where a window, stride or dilation does not fit the domain.
/// The operator `moonhalo::neighborhood_attention(query, key, value, window, stride, dilation, is_causal, scale)`.
/// Source: A. Hassani et al., Neighborhood Attention Transformer, CVPR 2023; Generalized Neighborhood Attention, 2025.
std::tuple<at::Tensor, at::Tensor> neighborhood_attention(const at::Tensor& query, const at::Tensor& key,
                                                          const at::Tensor& value, const Neighborhood& neighborhood,
                                                          std::optional<double> scale = std::nullopt);

}  // namespace moonhalo
