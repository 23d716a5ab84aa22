// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace moonhalo {

/// softmax(scale * q k^T + mask) v over cut sequences, as at::scaled_dot_product_attention, which comes here by itself
/// when a ShardTensor among its arguments is cut along queries or keys (of grouped queries: along heads, too):
///
///     query     [lead.., queries, head_dim]             lead: batch dims and, last, heads; float64, float32, bfloat16
///               or float16
///     key       [lead.., keys, head_dim]                heads may be a divisor of the query's (grouped queries)
///     value     [lead.., keys, value_dim]
///     attn_mask broadcasts to [lead.., queries, keys]: bool (true: seen) or added to the scores
///     output    [lead.., queries, value_dim]; logsumexp [lead.., queries], not differentiable, -inf where nothing is
///               seen; less the greatest number that attn_mask adds to the row, where that is finite and beyond 16
///
/// `is_causal`: query i of the whole sequence sees the keys 0 to i, beside what the mask lets it see. A query that sees
/// nothing gets zeros. Dropout of probability `dropout_p` is a function of `dropout_key` (int64, one number) and the
/// score's place in the whole tensor. `scale` is 1 / sqrt(head_dim) if not given. Collective for ShardTensors.
///
/// Keys and values go round to the queries, or queries to the keys, whatever is fewer bytes; no rank holds a whole
/// sequence, and scores are held in strips only (with dropout, or for a mask's gradient). How work is shared:
/// attention/specs.h. The second derivative holds all scores.
/// The operator `moonhalo::attention`. Source: H. Liu, M. Zaharia, P. Abbeel, Ring Attention with Blockwise
/// Transformers, 2023.
std::tuple<at::Tensor, at::Tensor> attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                             const std::optional<at::Tensor>& attn_mask, double dropout_p,
                                             bool is_causal, std::optional<double> scale,
                                             const std::optional<at::Tensor>& dropout_key);

}  // namespace moonhalo
