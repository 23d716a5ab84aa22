// SPDX-License-Identifier: Apache-2.0
// The fused kernels of nn.MultiheadAttention and nn.TransformerEncoderLayer (ops/attention/multi_head.cpp).
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/placement_cases.h"

namespace moonhalo::testing::test_multi_head {
namespace {

using at::Tensor;

constexpr int64_t kBatch = 3, kLength = 7, kEmbedding = 6, kHeads = 3;

const std::vector<PlacementCase> kWays = {
    {"batch", {3}, {shard(0, {2, 0, 1})}},
    {"sequence", {2}, {shard(1, {5, 2})}},
    {"sequence_empty", {4}, {shard(1, {3, 0, 3, 1})}},
    {"embedding", {2}, {shard(2, {1, 5})}},
    {"batch_and_sequence", {2, 2}, {shard(0, {1, 2}), shard(1, {3, 4})}},
    {"sequence_and_embedding", {2, 2}, {shard(1, {6, 1}), shard(2, {2, 4})}},
    {"partial", {3}, {partial()}},
};

Tensor weight(at::IntArrayRef shape, int64_t seed) { return make_tensor(shape, seed); }

Tensor all_but(at::IntArrayRef shape, std::initializer_list<std::pair<std::vector<int64_t>, bool>> set) {
  Tensor mask = make_tensor(shape, 90) > 0.4;
  for (const auto& [at_row, value] : set) {
    Tensor row = mask;
    for (const int64_t i : at_row) row = row.select(0, i);
    row.fill_(value);
  }
  return mask;
}

// By mask_type: over queries and keys; keys of each sample (of one all are hidden); both.
std::optional<Tensor> mask_of(std::optional<int64_t> type) {
  if (!type) return std::nullopt;
  if (*type == 0) return all_but({kLength, kLength}, {{{2}, true}, {{5}, false}});
  if (*type == 1) return all_but({kBatch, kLength}, {{{1}, true}, {{2}, false}});
  return all_but({kBatch, kHeads, kLength, kLength}, {{{1, 2, 4}, true}});
}

List attend(const Tensor& query, const Tensor& key, const Tensor& value, std::optional<int64_t> type, bool need_weights,
            bool average, const std::optional<Tensor>& mask) {
  auto [output, weights] = at::_native_multi_head_attention(
      query, key, value, kEmbedding, kHeads, weight({3 * kEmbedding, kEmbedding}, 1), weight({3 * kEmbedding}, 2),
      weight({kEmbedding, kEmbedding}, 3), weight({kEmbedding}, 4), mask, need_weights, average, type);
  EXPECT_EQ(weights.defined(), need_weights);
  return need_weights ? List{output, weights} : List{output};
}

// No fallback is allowed: nothing is gathered.
TEST(MultiHead, EqualsTheFusedKernelOnTheWholeTensors) {
  std::vector<Case> cases;
  for (const std::optional<int64_t> type :
       {std::optional<int64_t>(), std::optional<int64_t>(0), std::optional<int64_t>(1), std::optional<int64_t>(2)}) {
    for (const int way : {0, 1, 2}) {
      cases.push_back(
          {"self", [=](const Tensor& x) { return attend(x, x, x, type, way > 0, way > 1, mask_of(type)); }, kForward});
    }
    cases.push_back({"number_mask",
                     [=](const Tensor& x) {
                       const auto mask = mask_of(type);
                       return attend(x, x, x, type, true, true, mask ? std::optional(mask->to(at::kDouble)) : mask);
                     },
                     kForward});
    cases.push_back({"cross",
                     [=](const Tensor& x) { return attend(x, x * x, x + 1, type, false, true, mask_of(type)); },
                     kForward});
  }
  check(cases, make_tensor({kBatch, kLength, kEmbedding}, 5), kWays);
}

TEST(MultiHead, TakesMasksThatAreCut) {
  const Tensor x = make_tensor({kBatch, kLength, kEmbedding}, 5);
  for (const int64_t type : {0, 1, 2}) {
    SCOPED_TRACE(type);
    for (const bool need_weights : {false, true}) {
      expect_same_as_plain(
          {2}, {{x, {shard(1, {5, 2})}}, {*mask_of(type), {shard(type == 2 ? 3 : 1, {3, 4})}}},
          [&](const List& t) { return attend(t[0], t[0], t[0], type, need_weights, false, t[1]); }, kForward);
    }
  }
}

TEST(MultiHead, TheWholeEncoderLayerEqualsTheFusedKernel) {
  std::vector<Case> cases;
  for (const bool norm_first : {false, true}) {
    for (const bool gelu : {false, true}) {
      const std::optional<int64_t> type = gelu ? std::optional<int64_t>(1) : std::nullopt;
      cases.push_back({norm_first ? "norm_first" : "norm_last",
                       [=](const Tensor& x) {
                         return List{at::_transformer_encoder_layer_fwd(
                             x, kEmbedding, kHeads, weight({3 * kEmbedding, kEmbedding}, 1),
                             weight({3 * kEmbedding}, 2), weight({kEmbedding, kEmbedding}, 3), weight({kEmbedding}, 4),
                             gelu, norm_first, 1e-5, weight({kEmbedding}, 6), weight({kEmbedding}, 7),
                             weight({kEmbedding}, 8), weight({kEmbedding}, 9), weight({8, kEmbedding}, 10),
                             weight({8}, 11), weight({kEmbedding, 8}, 12), weight({kEmbedding}, 13), mask_of(type),
                             type)};
                       },
                       kForward});
    }
  }
  check(cases, make_tensor({kBatch, kLength, kEmbedding}, 5), kWays);
  check_in_inference_mode(cases, make_tensor({kBatch, kLength, kEmbedding}, 5), kWays);
}

// nn.TransformerEncoder makes one first where it is given a mask of padding.
TEST(MultiHead, NestedTensorsAreRefused) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const Tensor x = shard_of(make_tensor({kBatch, kLength, kEmbedding}, 5), mesh, {shard(1)});
    EXPECT_THAT(message_of([&] { at::_nested_tensor_from_mask(x, *mask_of(1)); }),
                ::testing::HasSubstr("_nested_tensor_from_mask: a ShardTensor cannot become a nested tensor"));
  });
}

TEST(MultiHead, RefusesWhatDoesNotFit) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const Tensor x = shard_of(make_tensor({kBatch, kLength, kEmbedding}, 5), mesh, {shard(1)});
    const auto message = [&](const std::optional<Tensor>& mask, std::optional<int64_t> type, const Tensor& key) {
      return message_of([&] { attend(x, key, key, type, false, true, mask); });
    };
    EXPECT_THAT(message({}, {}, x.narrow(1, 0, 4)), ::testing::HasSubstr("query, key and value are not the same"));
    EXPECT_THAT(message(mask_of(0), {}, x), ::testing::HasSubstr("a mask without a mask_type"));
    EXPECT_THAT(message(mask_of(0), 1, x), ::testing::HasSubstr("a mask [7, 7] of mask_type 1 instead of [3, 7]"));
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_multi_head
