// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>
#include <vector>

namespace moonhalo {

/// The window of a query, per spatial dim. A list of one number applies to all dims, an empty list means the default.
struct Neighborhood {
  std::vector<int64_t> window;  ///< keys per query along the dim, odd or even, at most the dim's extent / dilation
  std::vector<int64_t> stride = {1};      ///< number of adjacent queries that share a window; at most `window`
  std::vector<int64_t> dilation = {1};    ///< distance in rows from one key to the next
  std::vector<bool> is_causal = {false};  ///< along this dim a query's window ends at the query itself
};

/// Computes neighbourhood attention along 1 to 3 spatial dims: softmax(scale * q k^T) v over the keys of each query's
/// window.
///
///     query, key   [batch, dims..., heads, head_dim]     float32, float64, bfloat16; on a GPU also float16
///                                                        (accumulated in float32)
///     value        [batch, dims..., heads, value_dim]
///     output       [batch, dims..., heads, value_dim]
///     logsumexp    [batch, dims..., heads], float32 (float64 for float64): log of the sum of exp(scale * q.k) over the
///                  window
///
/// A window has window / 2 keys before the query and the rest after it. At the borders it is shifted so that every
/// query has a full window (along causal dims the first queries have fewer keys). With a dilation, the rows i, i +
/// dilation, ... are a separate domain. With a stride, each run of `stride` queries of such a domain uses the window of
/// its middle query (causal: of its last query, up to the query itself). The default of `scale` is 1 / sqrt(head_dim).
///
/// Takes ShardTensors of any placements. Shardings of batch and heads need no communication; shardings of spatial dims
/// exchange the halo of keys and values in one exchange (collective over the mesh). Twice differentiable in all tensors
/// and both results; a third derivative throws. Throws ValueError for a window, stride or dilation that does not fit
/// the domain.
/// Operator: `moonhalo::neighborhood_attention(query, key, value, window, stride, dilation, is_causal, scale)`.
/// Source: A. Hassani et al., Neighborhood Attention Transformer, CVPR 2023; Generalized Neighborhood Attention, 2025.
std::tuple<at::Tensor, at::Tensor> neighborhood_attention(const at::Tensor& query, const at::Tensor& key,
                                                          const at::Tensor& value, const Neighborhood& neighborhood,
                                                          std::optional<double> scale = std::nullopt);

}  // namespace moonhalo
