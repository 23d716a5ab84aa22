// SPDX-License-Identifier: Apache-2.0
// Rules of ops/attention/flash_attention_cpu.cpp: _scaled_dot_product_flash_attention_for_cpu and its backward.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/oracle.h"

namespace moonhalo::testing::test_attention {
namespace {

struct AttentionCase {
  std::string name;
  std::vector<int64_t> mesh;
  std::vector<Placement> placements;
  bool causal = false;
  bool masked = false;
};

TEST(Attention, EqualsTheWholeTensors) {
  const std::vector<AttentionCase> cases = {
      {"uneven_batch", {2}, {shard(0, {1, 2})}},
      {"empty_batch_block", {3}, {shard(0, {2, 0, 1})}, true},
      {"heads", {2}, {shard(1, {3, 1})}, false, true},
      {"batch_and_heads", {2, 2}, {shard(0, {2, 1}), shard(1, {1, 3})}, true},
      {"replicate_and_heads", {2, 2}, {replicate(), shard(1)}, false, true},
      {"cut_sequence_is_made_whole", {3}, {shard(2, {1, 5, 1})}},
      {"partial", {2}, {partial()}},
  };
  for (const auto& row : cases) {
    SCOPED_TRACE(row.name);
    std::vector<Input> inputs;
    for (int i = 0; i < 3; ++i) inputs.push_back({make_tensor({3, 4, 7, 8}, 40 + i), row.placements});
    if (row.masked) inputs.push_back({make_tensor({1, 4, 7, 7}, 50), {}, false, true});
    expect_same_as_plain(row.mesh, inputs, [&](const Tensors& t) {
      const auto mask = row.masked ? std::optional(t[3]) : std::nullopt;
      return Tensors{at::scaled_dot_product_attention(t[0], t[1], t[2], mask, 0.0, row.causal)};
    });
  }
}

TEST(Attention, DropoutInsideTheKernelIsRefused) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor q = shard_of(make_tensor({2, 1, 3, 4}, 1), mesh, {shard(0)});

    const std::string message = message_of([&] { at::_scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.5); });

    EXPECT_THAT(message, ::testing::HasSubstr("no rule for this random operator"));
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_attention
