// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace moonhalo {

/// Returns true if a list of axes holds `axis`.
inline bool contains(const std::vector<int64_t>& axes, int64_t axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

/// The sum of products over the axes that `out` lacks, as in an einsum of two tensors; axes are
/// numbers, one per dim, each at most once per tensor and each in at least two of the three lists.
///
///     contract(x, w, {0, 1, 2}, {3, 2}, {0, 1, 3})     linear of [batch, rows, features], no bias
///
/// `bias`, one number for each entry of the last axis of `out`, is added to the product; with it the contraction is a
/// linear layer as above, and LibTorch's own kernel adds it.
/// Unlike LibTorch's matmul and einsum it merges no dims, so a cut of any of them survives.
/// Differentiable any number of times, backward and forward. ValueError when extents differ. With ShardTensors among
/// its operands: collective as their placements need.
at::Tensor contract(const at::Tensor& left, const at::Tensor& right, std::vector<int64_t> left_axes,
                    std::vector<int64_t> right_axes, std::vector<int64_t> out_axes,
                    const std::optional<at::Tensor>& bias = std::nullopt);

class OpCall;
/// NotImplementedError for a product of matrices of integers on CUDA, which LibTorch does not have: its own error comes
/// on the ranks alone that have rows.
void refuse_integers_of_cuda(const OpCall& call);

/// Returns what LibTorch's mm and bmm multiply under autocast: `tensor` in the lower precision, if autocast is on
/// for its device and the tensor one that it casts. contract() does not cast by itself.
at::Tensor cast_as_factor(const at::Tensor& tensor);

}  // namespace moonhalo
