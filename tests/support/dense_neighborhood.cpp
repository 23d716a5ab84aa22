// SPDX-License-Identifier: Apache-2.0
#include "tests/support/dense_neighborhood.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <vector>

namespace moonhalo::testing {

at::Tensor seen_along(int64_t extent, int64_t window, int64_t stride, int64_t dilation, bool causal) {
  at::Tensor seen = at::zeros({extent, extent}, at::kBool);
  auto mark = seen.accessor<bool, 2>();
  for (int64_t group = 0; group < dilation; ++group) {
    std::vector<int64_t> rows;  // of the group, in order
    for (int64_t row = group; row < extent; row += dilation) rows.push_back(row);
    const auto length = static_cast<int64_t>(rows.size());
    for (int64_t q = 0; q < length; ++q) {
      const int64_t run = q - q % stride;  // queries run .. run + stride - 1 share a window
      const int64_t leader = std::min(run + (causal ? stride - 1 : stride / 2), length - 1);
      for (int64_t k = 0; causal && k <= q; ++k) mark[rows[q]][rows[k]] = leader - k < window;
      if (causal) continue;
      // The full window inside the domain that is nearest to where the leader would have it.
      int64_t best = 0;
      for (int64_t start = 0; start + window <= length; ++start) {
        const int64_t expected = leader - window / 2;
        if (std::abs(start - expected) < std::abs(best - expected)) best = start;
      }
      for (int64_t k = best; k < best + window; ++k) mark[rows[q]][rows[k]] = true;
    }
  }
  return seen;
}

at::Tensor dense_neighborhood_mask(at::IntArrayRef dims, const Neighborhood& n) {
  at::Tensor mask = at::ones({1, 1}, at::kBool);
  for (size_t d = 0; d < dims.size(); ++d) {
    const auto of = [&](const auto& list) { return list.size() == 1 ? list[0] : list[d]; };
    const at::Tensor along = seen_along(dims[d], of(n.window), of(n.stride), of(n.dilation), of(n.is_causal));
    mask = mask.view({mask.size(0), 1, mask.size(1), 1}).logical_and(along.view({1, dims[d], 1, dims[d]}));
    mask = mask.reshape({mask.size(0) * mask.size(1), mask.size(2) * mask.size(3)});
  }
  return mask;
}

std::tuple<at::Tensor, at::Tensor> dense_neighborhood_attention(const at::Tensor& query, const at::Tensor& key,
                                                                const at::Tensor& value, const Neighborhood& n,
                                                                std::optional<double> scale) {
  const int64_t ndim = query.dim();
  const at::Tensor mask = dense_neighborhood_mask(query.sizes().slice(1, ndim - 3), n);
  const auto tokens = [&](const at::Tensor& t) {
    return t.flatten(1, ndim - 3).transpose(1, 2);
  };  // [batch, heads, tokens, c]
  const at::Tensor q = tokens(query) * (scale ? *scale : 1 / std::sqrt(static_cast<double>(query.size(-1))));
  const at::Tensor scores =
      q.matmul(tokens(key).transpose(-2, -1)).masked_fill(mask.logical_not(), -std::numeric_limits<double>::infinity());
  std::vector<int64_t> shape = value.sizes().vec();
  const at::Tensor output = scores.softmax(-1).matmul(tokens(value)).transpose(1, 2).reshape(shape);
  shape.pop_back();
  return {output, scores.logsumexp(-1).transpose(1, 2).reshape(shape)};
}

}  // namespace moonhalo::testing
