// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "moonhalo/ops/neighborhood/operator.h"

namespace moonhalo::testing {

/// [extent, extent] bool: does query i see key j along this dim. By the definition alone, row by row; shares no code
/// with ops/.
at::Tensor seen_along(int64_t extent, int64_t window, int64_t stride, int64_t dilation, bool causal);

/// Neighbourhood attention with all scores and a mask: output and logsumexp, differentiable as often as one likes.
/// Plain tensors.
std::tuple<at::Tensor, at::Tensor> dense_neighborhood_attention(const at::Tensor& query, const at::Tensor& key,
                                                                const at::Tensor& value,
                                                                const Neighborhood& neighborhood,
                                                                std::optional<double> scale = std::nullopt);

/// Boolean mask [tokens, tokens] of all dims together.
at::Tensor dense_neighborhood_mask(at::IntArrayRef dims, const Neighborhood& neighborhood);

}  // namespace moonhalo::testing
