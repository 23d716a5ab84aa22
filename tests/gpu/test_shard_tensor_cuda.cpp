// SPDX-License-Identifier: Apache-2.0
// A small net on blocks of ranks that share a GPU, forward and backward, against the same net on plain tensors there.
#include <ATen/ATen.h>
#include <c10/core/AutogradState.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/ops/neighborhood/operator.h"
#include "tests/gpu/gpu.h"
#include "tests/support/oracle.h"
#include "tests/support/placement_cases.h"
#include "tests/support/ranks.h"

namespace moonhalo::testing::test_shard_tensor_cuda {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;

class ShardTensorCuda : public OnGpu<> {};

// A field [batch, channel, row, column] and the weights of the net.
struct Named {
  const char* name;
  Tensor full;
};
const std::vector<Named>& whole_inputs() {
  static const std::vector<Named> inputs = {
      {"field", make_tensor({2, 3, 12, 10}, 1)}, {"conv weight", make_tensor({8, 3, 3, 3}, 2)},
      {"conv bias", make_tensor({8}, 3)},        {"norm weight", make_tensor({8}, 4) + 2},
      {"norm bias", make_tensor({8}, 5)},        {"to query, key, value", make_tensor({24, 8}, 6)},
      {"to output", make_tensor({8, 8}, 7)},     {"strided weight", make_tensor({4, 8, 3, 3}, 8)},
  };
  return inputs;
}

// Convolution, batch norm, neighbourhood attention and attention over all tokens with residuals, a strided convolution.
Tensors net(const Tensors& t) {
  const Tensor first = at::conv2d(t[0], t[1], t[2], 1, 1);
  const Tensor normed = at::gelu(at::batch_norm(first, t[3], t[4], {}, {}, true, 0.1, 1e-5, true));
  const Tensor pixels = normed.permute({0, 2, 3, 1});  // [batch, row, column, 8]
  const auto split = at::linear(pixels, t[5]).chunk(3, -1);
  const auto heads = [](const Tensor& x) { return x.unflatten(-1, {2, 4}); };  // [batch, row, column, head, 4]
  const Tensor near = std::get<0>(neighborhood_attention(heads(split[0]), heads(split[1]), heads(split[2]), {{5, 3}}));
  const Tensor mixed = pixels + at::linear(near.flatten(-2), t[6]);
  const auto again = at::linear(mixed, t[5]).chunk(3, -1);
  const auto tokens = [&](const Tensor& x) { return heads(x).flatten(1, 2).transpose(1, 2); };
  const Tensor all = at::scaled_dot_product_attention(tokens(again[0]), tokens(again[1]), tokens(again[2]))
                         .transpose(1, 2)
                         .flatten(-2);
  const Tensor field = (mixed.flatten(1, 2) + all).transpose(1, 2).unflatten(-1, {12, 10});
  const Tensor coarse = at::conv2d(field, t[7], {}, 2, 1);
  return {coarse, (coarse * coarse).mean()};
}

struct Outcome {
  Tensors results, gradients;
};

Outcome outcome_of(Tensors leaves) {
  for (Tensor& leaf : leaves) leaf.requires_grad_();
  Outcome outcome{net(leaves), {}};
  torch::autograd::backward({outcome.results[1]}, {});
  for (Tensor& result : outcome.results) result = result.detach();
  for (const Tensor& leaf : leaves) outcome.gradients.push_back(leaf.grad());
  return outcome;
}

// On plain tensors of the GPU, brought to the host.
Outcome on_plain_tensors() {
  Tensors leaves;
  for (const Named& input : whole_inputs()) leaves.push_back(input.full.to(gpu()));
  Outcome outcome = outcome_of(leaves);
  for (Tensors* list : {&outcome.results, &outcome.gradients}) {
    for (Tensor& t : *list) t = t.cpu();
  }
  return outcome;
}

// The field as `placements` say, weights on every rank.
Tensors leaves_on(const MeshPtr& mesh, const std::vector<Placement>& placements) {
  Tensors leaves;
  for (const Named& input : whole_inputs()) {
    const std::vector<Placement> whole(placements.size(), replicate());
    leaves.push_back(distribute_tensor(input.full, mesh, leaves.empty() ? placements : whole));
  }
  return leaves;
}

void expect_same(const Outcome& actual, const Outcome& expected, double tolerance) {
  for (size_t i = 0; i < expected.results.size(); ++i)
    EXPECT_EQ(difference(full_tensor(actual.results[i]), expected.results[i], tolerance), "") << "result " << i;
  for (size_t i = 0; i < expected.gradients.size(); ++i) {
    ASSERT_TRUE(actual.gradients[i].defined()) << whole_inputs()[i].name;
    EXPECT_EQ(difference(full_tensor(actual.gradients[i]), expected.gradients[i], tolerance), "")
        << "gradient of " << whole_inputs()[i].name;
  }
}

const std::vector<PlacementCase> kWays = {
    {"rows", {2}, {shard(2, {5, 7})}},
    {"columns", {2}, {shard(3, {7, 3})}},
    {"batch", {2}, {shard(0, {1, 1})}},
    {"rows with an empty block", {3}, {shard(2, {7, 0, 5})}},
    {"grid", {2, 2}, {shard(2, {6, 6}), shard(3, {4, 6})}},
};

void run_on_ranks(const PlacementCase& way, const std::function<void(const MeshPtr&)>& body) {
  int64_t ranks = 1;
  for (const int64_t extent : way.mesh) ranks *= extent;
  on_ranks(static_cast<int>(ranks), [&](Communicator& world) {
    set_fallback(Fallback::kError);
    body(init_device_mesh(world, gpu().str(), way.mesh));
  });
}

TEST_F(ShardTensorCuda, X01_ANetOnBlocksIsThatOnPlainTensors) {
  const Outcome expected = on_plain_tensors();
  for (const PlacementCase& way : kWays) {
    SCOPED_TRACE(way.name);
    const std::string error = message_of([&] {
      run_on_ranks(way, [&](const MeshPtr& mesh) {
        SCOPED_TRACE("rank " + std::to_string(mesh->rank()) + ", " + way.name);
        const Tensors leaves = leaves_on(mesh, way.placements);
        EXPECT_EQ(to_local(leaves[0]).device(), gpu());
        expect_same(outcome_of(leaves), expected, 1e-9);
      });
    });
    EXPECT_EQ(error, "");
  }
}

TEST_F(ShardTensorCuda, S16_ANetWithAStreamForEachRank) {
  const Outcome expected = on_plain_tensors();
  run_on_ranks(kWays[0], [&](const MeshPtr& mesh) {
    const c10::StreamGuard beside(another_gpu_stream());
    for (int round = 0; round < 3; ++round) {
      keep_gpu_busy();
      expect_same(outcome_of(leaves_on(mesh, kWays[0].placements)), expected, 1e-9);
    }
  });
}

// A thread of the GPU would serve all ranks, and a collective in it would wait for itself.
TEST_F(ShardTensorCuda, S16_ABackwardPassStaysOnTheRanksThread) {
  std::mutex mutex;
  std::set<std::thread::id> ranks, backward;
  run_on_ranks(kWays[0], [&](const MeshPtr& mesh) {
    EXPECT_FALSE(c10::AutogradState::get_tls_state().get_multithreading_enabled());
    {
      const std::lock_guard lock(mutex);
      ranks.insert(std::this_thread::get_id());
    }
    Tensors leaves = leaves_on(mesh, kWays[0].placements);
    leaves[0].requires_grad_().register_hook([&](const Tensor&) {
      const std::lock_guard lock(mutex);
      backward.insert(std::this_thread::get_id());
    });
    outcome_of(leaves);
  });
  EXPECT_EQ(ranks.size(), 2U);
  EXPECT_EQ(backward, ranks);
}

TEST_F(ShardTensorCuda, S16_TheMemoryOfRanksIsFreedWhenTheyEnd) {
  const auto train = [] {
    run_on_ranks(kWays[0], [](const MeshPtr& mesh) { outcome_of(leaves_on(mesh, kWays[0].placements)); });
    wait_for_gpu();
    return gpu_bytes_in_use();
  };
  train();  // LibTorch's libraries keep workspaces for each thread that uses them, and give them to later ones
  const int64_t before = train();
  int64_t after = 0;
  for (int round = 0; round < 3; ++round) after = train();
  EXPECT_EQ(after, before) << "bytes that are still in use";
}

TEST_F(ShardTensorCuda, X16_ARankThatThrowsEndsTheOther) {
  std::atomic<int> told{0};
  const std::string first = message_of([&] {
    run_on_ranks(kWays[0], [&](const MeshPtr& mesh) {
      const Tensors leaves = leaves_on(mesh, kWays[0].placements);
      outcome_of(leaves);
      if (mesh->rank() == 1) TORCH_CHECK_VALUE(false, "the valve is stuck");
      told += message_of([&] { outcome_of(leaves); }).find("the valve is stuck") != std::string::npos;
    });
  });
  EXPECT_EQ(first, "rank 1: the valve is stuck");
  EXPECT_EQ(told, 1);
}

TEST_F(ShardTensorCuda, X16_AGpuThatIsFullEndsAllRanks) {
  std::string told;
  const std::string first = message_of([&] {
    run_on_ranks(kWays[0], [&](const MeshPtr& mesh) {
      const Tensors leaves = leaves_on(mesh, kWays[0].placements);
      if (mesh->rank() == 1) at::empty({int64_t{1} << 50}, gpu());
      told = message_of([&] { outcome_of(leaves); });
    });
  });
  EXPECT_THAT(first, AllOf(HasSubstr("rank 1: "), HasSubstr("out of memory")));
  EXPECT_THAT(told, HasSubstr("out of memory"));
}

}  // namespace
}  // namespace moonhalo::testing::test_shard_tensor_cuda
