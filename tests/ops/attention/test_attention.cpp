// SPDX-License-Identifier: Apache-2.0
// Rules of ops/attention/flash_attention_cpu.cpp: _scaled_dot_product_flash_attention_for_cpu and its backward.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string_view>

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
      {"sequence_on_one_rank", {2, 1}, {shard(0, {1, 2}), shard(2)}, true},
      {"sequence_and_heads_on_one_rank", {1, 2}, {shard(2), shard(1, {3, 1})}},
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

// Counts calls of aten::copy_ in a step of attention to rows that a plain parameter scales.
int64_t copies_in_step(const at::Tensor& x) {
  static int64_t copies = 0;
  const at::Tensor scale = make_tensor({4}, 60).requires_grad_();
  const auto step = [&] {
    scale.mutable_grad().reset();
    const at::Tensor q = x * scale;
    at::scaled_dot_product_attention(q, q, q).square().sum().backward();
  };
  step();
  copies = 0;
  const auto count = [](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
    copies += std::string_view(call.name()) == "aten::copy_" ? 1 : 0;
    return nullptr;
  };
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(count).scopes({at::RecordScope::FUNCTION}));
  step();
  at::removeCallback(handle);
  EXPECT_FALSE(is_shard_tensor(scale.grad()));
  return copies;
}

// Nothing is cut there, so nothing is copied to get other placements.
TEST(Attention, AMeshOfOneRankCopiesNoMoreThanPlainTensors) {
  const at::Tensor x = make_tensor({2, 3, 6, 4}, 62);
  const int64_t plain = copies_in_step(x);
  on_mesh({1}, [&](const MeshPtr& mesh) {
    for (const Placement& placement : {shard(0), shard(1), shard(2), replicate()})
      EXPECT_LE(copies_in_step(shard_of(x, mesh, {placement})), plain) << placement.to_string();
  });
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
