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

constexpr int64_t kSequenceDim = 2;

struct DrawnCall {
  Sizes mesh;
  std::vector<Input> inputs;  // query, key, value, and a mask where the call has one
  bool causal = false, grouped = false;
};

Placement drawn_cut(Draw& draw, int64_t dim, int64_t rows, int64_t ranks) {
  Sizes sizes(ranks);
  for (int64_t left = rows; left > 0; --left) ++sizes[draw.below(ranks)];
  return shard(dim, sizes);
}

// Mostly cuts of the sequence. A dim that is cut twice is cut evenly.
Placements drawn_placements(Draw& draw, const Sizes& mesh, const Sizes& shape) {
  Placements result;
  for (const int64_t ranks : mesh) {
    const int64_t kind = draw.below(8);
    if (kind == 0) {
      result.push_back(replicate());
    } else if (kind == 1) {
      result.push_back(partial());
    } else {
      const int64_t dim = kind == 2 ? draw.below(4) : kSequenceDim;
      result.push_back(drawn_cut(draw, dim, shape[dim], ranks));
    }
  }
  for (Placement& p : result) {
    const auto same = [&](const Placement& q) { return q.is_shard() && q.dim == p.dim; };
    if (p.is_shard() && std::count_if(result.begin(), result.end(), same) > 1) p.sizes = {};
  }
  return result;
}

// Some dims have one element, which is broadcast.
at::Tensor drawn_mask(Draw& draw, const Sizes& scores, int64_t seed) {
  const int64_t percents[] = {50, 50, 70, 90};
  Sizes shape;
  for (size_t d = 0; d < scores.size(); ++d) shape.push_back(draw.percent(percents[d]) ? scores[d] : 1);
  return make_tensor(shape, seed);
}

DrawnCall drawn_call(int64_t number) {
  static const std::vector<Sizes> meshes = {{2}, {3}, {4}, {2, 2}, {1, 3}, {3, 2}};
  Draw draw("attention " + std::to_string(number));
  DrawnCall call{.mesh = meshes[draw.below(static_cast<int64_t>(meshes.size()))]};
  const int64_t queries = draw.below(24), keys = draw.percent(50) ? queries : draw.below(24);
  const int64_t key_heads = 1 + draw.below(2), groups = draw.percent(30) ? 2 : 1;
  call.causal = draw.percent(50), call.grouped = groups > 1;
  const bool masked = !call.causal && draw.percent(50), boolean = draw.percent(40);
  const bool mask_grad = !boolean && draw.percent(50);
  const Sizes query = {2, key_heads * groups, queries, 4}, key = {2, key_heads, keys, 4};

  const Placements of_queries = drawn_placements(draw, call.mesh, query);
  const bool same_cut = keys == queries && groups == 1 && draw.percent(50);
  const Placements of_keys = same_cut ? of_queries : drawn_placements(draw, call.mesh, key);
  const Placements of_values = draw.percent(80) ? of_keys : drawn_placements(draw, call.mesh, key);
  call.inputs = {{make_tensor(query, number) * 2, of_queries},
                 {make_tensor(key, number + 1) * 2, of_keys},
                 {make_tensor(key, number + 2), of_values}};
  if (masked) {
    const at::Tensor mask = drawn_mask(draw, {2, key_heads * groups, queries, keys}, number + 3);
    Placements of_mask(call.mesh.size(), replicate());
    if (draw.percent(60)) of_mask.back() = shard(2 + draw.below(2));
    // LibTorch gives the gradient of a mask without elements as zeros or, from 2.15, not at all.
    call.inputs.push_back({boolean ? mask.gt(-0.3) : mask, of_mask, mask_grad && mask.numel() > 0});
  }
  return call;
}

std::string described(const DrawnCall& call) {
  std::string text = std::string(call.causal ? " causal" : "") + (call.grouped ? " groups" : "");
  for (const Input& input : call.inputs) {
    text += "; " + shape_string(input.full.sizes());
    for (const Placement& p : input.placements) text += " " + p.to_string();
  }
  return text;
}

// Lengths, blocks, meshes, masks, groups, causality as they come; as many times more as MOONHALO_SWEEP says.
TEST(AttentionRing, X07_DrawnCalls) {
  const char* more = std::getenv("MOONHALO_SWEEP");
  const int64_t count = 60 * (more != nullptr ? std::atoi(more) : 1);
  for (int64_t i = 0; i < count; ++i) {
    const DrawnCall call = drawn_call(i);
    SCOPED_TRACE("draw " + std::to_string(i) + described(call));
    const std::string thrown = message_of([&] {
      expect_same_as_plain(call.mesh, call.inputs, [&](const Tensors& t) {
        const auto mask = t.size() > 3 ? std::optional(t[3]) : std::nullopt;
        return Tensors{at::scaled_dot_product_attention(t[0], t[1], t[2], mask, 0, call.causal, {}, call.grouped)};
      });
    });
    EXPECT_EQ(thrown, "");
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_attention_drawn
