// SPDX-License-Identifier: Apache-2.0
// scaled_dot_product_attention over cut sequences, with arguments as they come.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "moonhalo/engine/base/text.h"
#include "tests/support/oracle.h"
#include "tests/support/placements.h"

namespace moonhalo::testing::test_attention_drawn {
namespace {

using Sizes = std::vector<int64_t>;
using Placements = std::vector<Placement>;

// Lengths, blocks, meshes, masks, groups, causality as they come; as many times more as MOONHALO_SWEEP says.
TEST(AttentionRing, X07_DrawnCalls) {
  const char* more = std::getenv("MOONHALO_SWEEP");
  const int64_t count = 60 * (more != nullptr ? std::atoi(more) : 1);
  const std::vector<Sizes> meshes = {{2}, {3}, {4}, {2, 2}, {1, 3}, {3, 2}};
  for (int64_t i = 0; i < count; ++i) {
    Draw draw("attention " + std::to_string(i));
    const Sizes mesh = meshes[draw.below(static_cast<int64_t>(meshes.size()))];
    const int64_t queries = draw.below(24), keys = draw.percent(50) ? queries : draw.below(24);
    const int64_t key_heads = 1 + draw.below(2), groups = draw.percent(30) ? 2 : 1;
    const bool causal = draw.percent(50), masked = !causal && draw.percent(50);
    const bool boolean = draw.percent(40), mask_grad = !boolean && draw.percent(50);
    const auto placements = [&](const Sizes& shape, int64_t rows, bool identical, const Placements& other) {
      if (identical) return other;
      Placements result;
      for (const int64_t ranks : mesh) {
        const int64_t kind = draw.below(8);
        if (kind == 0) {
          result.push_back(replicate());
        } else if (kind == 1) {
          result.push_back(partial());
        } else {
          const int64_t dim = kind == 2 ? draw.below(4) : rows;
          const bool cut_before = std::any_of(result.begin(), result.end(),
                                              [&](const Placement& p) { return p.is_shard() && p.dim == dim; });
          Sizes sizes(ranks);
          for (int64_t left = shape[dim]; left > 0; --left) ++sizes[draw.below(ranks)];
          result.push_back(cut_before ? shard(dim) : shard(dim, sizes));
        }
      }
      // A dim that is cut twice is cut evenly.
      for (Placement& p : result) {
        const auto same = [&](const Placement& q) { return q.is_shard() && q.dim == p.dim; };
        if (p.is_shard() && std::count_if(result.begin(), result.end(), same) > 1) p.sizes = {};
      }
      return result;
    };
    const Sizes query = {2, key_heads * groups, queries, 4}, key = {2, key_heads, keys, 4};
    const Placements of_queries = placements(query, 2, false, {});
    const Placements of_keys = placements(key, 2, keys == queries && groups == 1 && draw.percent(50), of_queries);
    std::vector<Input> inputs = {{make_tensor(query, i) * 2, of_queries},
                                 {make_tensor(key, i + 1) * 2, of_keys},
                                 {make_tensor(key, i + 2), placements(key, 2, draw.percent(80), of_keys)}};
    if (masked) {
      const Sizes shape = {draw.percent(50) ? 2 : 1, draw.percent(50) ? key_heads * groups : 1,
                           draw.percent(70) ? queries : 1, draw.percent(90) ? keys : 1};
      at::Tensor mask = make_tensor(shape, i + 3);
      if (boolean) mask = mask.gt(-0.3);
      Placements held(mesh.size(), replicate());
      if (draw.percent(60)) held.back() = shard(2 + draw.below(2));
      // LibTorch gives the gradient of a mask without elements as zeros or, from 2.15, not at all.
      inputs.push_back({mask, held, mask_grad && mask.numel() > 0});
    }
    std::string text = "draw " + std::to_string(i) + (causal ? " causal" : "") + (groups > 1 ? " groups" : "");
    for (const Input& input : inputs) {
      text += "; " + shape_string(input.full.sizes());
      for (const Placement& p : input.placements) text += " " + p.to_string();
    }
    SCOPED_TRACE(text);
    const std::string thrown = message_of([&] {
      expect_same_as_plain(mesh, inputs, [&](const Tensors& t) {
        const auto mask = masked ? std::optional(t[3]) : std::nullopt;
        return Tensors{at::scaled_dot_product_attention(t[0], t[1], t[2], mask, 0, causal, {}, groups > 1)};
      });
    });
    EXPECT_EQ(thrown, "");
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_attention_drawn
