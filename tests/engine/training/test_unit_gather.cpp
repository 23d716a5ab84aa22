// SPDX-License-Identifier: Apache-2.0
// Parameters in blocks on many ranks: what dry runs record of gathers and of sums of gradients.
#include "moonhalo/engine/training/unit_gather.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/forecast/fake_tensor.h"
#include "moonhalo/engine/forecast/tape_recorder.h"
#include "moonhalo/engine/profile/memory.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/engine/training/gradient_sync.h"

namespace moonhalo::testing::test_unit_gather {
namespace {

// The numbers on a tape of calls of `aten::copy_`, of events that stand for them, and of blocks that were made.
struct Recorded {
  int64_t calls = 0, events = 0, blocks = 0;
};

Recorded recorded(const Tape& tape) {
  Recorded all;
  for (const TapeEvent& event : tape.events) {
    if (const auto* block = std::get_if<TapeBlock>(&event.what)) all.blocks += block->bytes > 0 ? 1 : 0;
    const auto* call = std::get_if<TapeOperator>(&event.what);
    if (call == nullptr || tape.names.at(call->name) != "aten::copy_") continue;
    ++all.events;
    all.calls += call->times;
  }
  return all;
}

std::vector<at::Tensor> stored_ones(const MeshPtr& mesh, const std::vector<std::vector<int64_t>>& shapes) {
  std::vector<at::Tensor> parameters;
  for (const std::vector<int64_t>& shape : shapes) {
    const SpecPtr spec = make_spec(mesh, shape, {stored(0)});
    parameters.push_back(from_local(at::ones(spec->local_shape()), spec));
  }
  return parameters;
}

// 24 rows on 16 ranks: eight ranks have two, the others one. The rows of a rank are copied to their place in the whole.
TEST(UnitGather, X14_CopiesForManyRanksAreAFewCalls) {
  const MemoryCount counted;
  const FakeResults fakes;
  const auto world = make_fake_communicator(3, 16);
  const MeshPtr mesh = init_device_mesh(*world, "cpu", {16}, {"data"});
  const std::vector<at::Tensor> parameters = stored_ones(mesh, {{24, 8}, {24}});

  TapeRecorder recorder(*world);
  const std::vector<at::Tensor> whole = UnitGather(parameters).finish();
  const Recorded all = recorded(recorder.take());

  EXPECT_EQ(whole.at(0).sizes(), at::IntArrayRef({24, 8}));
  EXPECT_EQ(whole.at(1).sum().item<double>(), 2) << "rows of this rank; those of others are zeros";
  EXPECT_EQ(all.calls, 2 * (1 + 16)) << "own blocks into the message, and those of all ranks into the whole tensors";
  EXPECT_EQ(all.events, 2 * (1 + 2)) << "one call for all ranks with as many rows";
  EXPECT_EQ(all.blocks, 1 + 2) << "all messages, and both whole tensors";
}

TEST(GradientSync, X14_MessagesOfManyRanksAreOneBlock) {
  const MemoryCount counted;
  const FakeResults fakes;
  const auto world = make_fake_communicator(3, 512);
  const MeshPtr mesh = init_device_mesh(*world, "cpu", {512}, {"data"});
  std::vector<at::Tensor> parameters = stored_ones(mesh, {{1024, 8}, {600}});
  for (at::Tensor& parameter : parameters) {
    parameter.requires_grad_();
    parameter.mutable_grad() = from_local(at::ones(parameter.sizes()), mesh, {partial()});
  }

  TapeRecorder recorder(*world);
  PendingGradientSync(parameters, false, {}).finish();
  const Recorded all = recorded(recorder.take());

  EXPECT_EQ(to_local(parameters[0].grad()).sizes(), at::IntArrayRef({2, 8}));
  EXPECT_EQ(to_local(parameters[1].grad()).sizes(), at::IntArrayRef({2}));
  EXPECT_LE(all.blocks, 6) << "the packed gradients, what comes, their sum, and both new blocks";
}

TEST(SplitBlock, X14_PartsAreViews) {
  const FakeResults fakes;
  const auto world = make_fake_communicator(0, 2);
  for (const at::Tensor& block : {at::ones({4, 8}), at::ones({400, 800})}) {
    const std::vector<int64_t> sizes{block.size(1) - 3, 0, 3};
    TapeRecorder recorder(*world);
    const std::vector<at::Tensor> parts = split_block(block, sizes, 1);
    EXPECT_TRUE(recorder.take().events.empty());
    ASSERT_EQ(parts.size(), 3);
    for (size_t i = 0; i < parts.size(); ++i) {
      EXPECT_EQ(parts[i].size(1), sizes[i]);
      EXPECT_EQ(is_fake(parts[i]), is_fake(block));
      EXPECT_TRUE(parts[i].is_alias_of(block));
    }
    EXPECT_EQ(parts[2].storage_offset(), block.size(1) - 3);
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_unit_gather
