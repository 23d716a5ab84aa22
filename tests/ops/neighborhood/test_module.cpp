// SPDX-License-Identifier: Apache-2.0
// moonhalo::nn::NeighborhoodAttention1d/2d/3d: against the formula, and on ShardTensors against one plain tensor.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "moonhalo/ops/neighborhood/module.h"
#include "tests/support/dense_neighborhood.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_module {
namespace {

// t: input, then weight and bias of qkv and of proj.
template <typename Module>
Program with_weights(nn::NeighborhoodAttentionOptions options) {
  return [options](const Tensors& t) {
    Module module(options);
    module->qkv->weight = t[1];
    module->qkv->bias = t[2];
    module->proj->weight = t[3];
    module->proj->bias = t[4];
    return Tensors{module->forward(t[0])};
  };
}

std::vector<Input> inputs_of(std::vector<int64_t> shape, std::vector<Placement> placements) {
  const int64_t c = shape.back();
  std::vector<Input> inputs = {{make_tensor(shape, 1), std::move(placements)}};
  for (const auto& [rows, columns] : {std::pair{3 * c, c}, {3 * c, int64_t{0}}, {c, c}, {c, int64_t{0}}}) {
    const auto weight = columns > 0 ? make_tensor({rows, columns}, 2 + rows) : make_tensor({rows}, 3 + rows);
    inputs.push_back({weight, {}, true, true});
  }
  return inputs;
}

TEST(NeighborhoodAttentionModule, X04_ShardedEqualsPlain) {
  expect_same_as_plain({2}, inputs_of({2, 9, 6}, {shard(1, {3, 6})}),
                       with_weights<nn::NeighborhoodAttention1d>({6, 3, {{4}, {2}, {2}}}));
  expect_same_as_plain({2, 2}, inputs_of({2, 9, 5, 4}, {shard(1, {1, 8}), shard(2, {3, 2})}),
                       with_weights<nn::NeighborhoodAttention2d>({4, 2, {{5, 3}}, true, 0.3}));
  expect_same_as_plain({3}, inputs_of({1, 4, 9, 3, 4}, {shard(2, {4, 0, 5})}),
                       with_weights<nn::NeighborhoodAttention3d>({4, 1, {{2, 5, 3}, {1}, {1}, {true, false, false}}}));
}

TEST(NeighborhoodAttentionModule, X04_IsTwoProjectionsAroundDenseMaskedAttention) {
  Tensors t;
  for (const Input& input : inputs_of({2, 5, 6, 4}, {})) t.push_back(input.full);
  const Neighborhood n{{3, 4}};
  const at::Tensor parts = at::linear(t[0], t[1], t[2]).view({2, 5, 6, 3, 2, 2});
  const auto dense = dense_neighborhood_attention(parts.select(3, 0), parts.select(3, 1), parts.select(3, 2), n);
  const at::Tensor expected = at::linear(std::get<0>(dense).flatten(-2), t[3], t[4]);

  const at::Tensor actual = with_weights<nn::NeighborhoodAttention2d>({4, 2, n})(t)[0];

  EXPECT_EQ(difference(actual.detach(), expected, 1e-10), "");
}

TEST(NeighborhoodAttentionModule, X04_RegistersCopiesPrintsAndRefuses) {
  nn::NeighborhoodAttention2d module({8, 2, {{3, 5}}, false});
  std::ostringstream text;
  module->pretty_print(text);
  EXPECT_EQ(text.str(), "moonhalo::nn::NeighborhoodAttention2d(embed_dim=8, num_heads=2, window=[3, 5])");
  EXPECT_EQ(module->named_parameters().keys(), (std::vector<std::string>{"qkv.weight", "proj.weight"}));
  const auto copy = std::dynamic_pointer_cast<nn::NeighborhoodAttentionImpl>(module->clone());
  const at::Tensor x = make_tensor({1, 6, 6, 8}, 1, at::kFloat);
  EXPECT_TRUE(at::equal(copy->forward(x), module->forward(x)));
  EXPECT_FALSE(copy->qkv->weight.is_same(module->qkv->weight));

  EXPECT_THAT(message_of([] {
                nn::NeighborhoodAttention1d({8, 3, {{3}}});
              }),
              ::testing::StartsWith("NeighborhoodAttention1d: embed_dim 8 is not divisible by num_heads 3"));
  EXPECT_THAT(message_of([&] { module->forward(x[0]); }),
              ::testing::StartsWith("NeighborhoodAttention2d: the input has 3 dims, expected 4"));
}

}  // namespace
}  // namespace moonhalo::testing::test_module
