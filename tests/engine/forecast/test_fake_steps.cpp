// SPDX-License-Identifier: Apache-2.0
// Training steps of whole models on fake tensors.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/adamw.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "moonhalo/engine/forecast/fake_call_time.h"
#include "moonhalo/engine/forecast/fake_tensor.h"
#include "moonhalo/engine/forecast/shape_rules.h"
#include "moonhalo/engine/forecast/tape_recorder.h"
#include "moonhalo/engine/moonhalo.h"
#include "tests/bench/models.h"
#include "tests/support/live_bytes.h"
#include "tests/support/process_memory.h"

namespace moonhalo::testing::test_fake_steps {
namespace {

template <typename Net>
void step(Net& net, torch::optim::AdamW& optimizer, const at::Tensor& x) {
  optimizer.zero_grad();
  net->forward(x).square().mean().backward();
  optimizer.step();
}

// Peak of live bytes over two steps.
template <typename Net>
int64_t peak_of(Net net, const at::Tensor& x) {
  auto live = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, live);
  torch::optim::AdamW optimizer(net->parameters(), 1e-3);
  for (int i = 0; i < 2; ++i) step(net, optimizer, x);
  return live->peak;
}

template <typename Make>
void expect_peak_of_real_step(const Make& make, double tolerance) {
  const std::vector<int64_t> shape{2, bench::kFieldChannels, 128, 128};
  const auto real = static_cast<double>(peak_of(make(), at::ones(shape)));
  const FakeResults fakes;
  EXPECT_NEAR(static_cast<double>(peak_of(make(), make_fake(shape, at::kFloat))), real, tolerance * real);
}

TEST(FakeSteps, X14_LiveMemoryIsThatOfRealSteps) {
  {
    SCOPED_TRACE("U-Net");
    expect_peak_of_real_step([] { return bench::UNet(); }, 0.03);
  }
  {
    SCOPED_TRACE("ViT");
    expect_peak_of_real_step([] { return bench::VisionTransformer(128); }, 0.03);
  }
  {
    SCOPED_TRACE("FNO");
    expect_peak_of_real_step([] { return bench::Fno(); }, 0.03);
  }
}

// Forward and backward of an attention layer whose scores take more memory than its results.
int64_t peak_of_attention(at::Tensor query, at::Tensor key) {
  auto live = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, live);
  query.requires_grad_();
  const at::Tensor y = at::scaled_dot_product_attention(query, key, key);
  torch::autograd::grad({y}, {query}, {at::ones_like(y)});
  return live->peak;
}

TEST(FakeSteps, X14_AttentionsWorkSpaceIsCounted) {
  for (const auto& [queries, keys] :
       {std::pair<int64_t, int64_t>{900, 900}, {300, 700}, {40, 600}, {500, 20}, {7, 5}}) {
    SCOPED_TRACE(std::to_string(queries) + " queries, " + std::to_string(keys) + " keys");
    const std::vector<int64_t> query{1, 2, queries, 8}, key{1, 2, keys, 8};
    const auto real = static_cast<double>(peak_of_attention(at::ones(query), at::ones(key)));
    const FakeResults fakes;
    const int64_t fake = peak_of_attention(make_fake(query, at::kFloat), make_fake(key, at::kFloat));
    EXPECT_NEAR(static_cast<double>(fake), real, 0.01 * real);
  }
}

TEST(FakeSteps, X14_AStepOfManyGigabytesNeedsLittleMemory) {
  const FakeResults fakes;
  int64_t peak = 0;

  const double grown = memory_growth([&] {
    peak = peak_of(bench::UNet(), make_fake({8, bench::kFieldChannels, 2048, 2048}, at::kFloat));
  });

  EXPECT_GT(peak, int64_t{55'000'000'000});
  EXPECT_LT(grown, 1e8);
}

struct Sent {
  std::array<int64_t, 3 * CommStats::kKinds> numbers{};
  friend bool operator==(const Sent&, const Sent&) = default;
};

// Counts of what a rank of 8 x 8 sends in the second step.
template <typename Net>
Sent sent_by(Net net, int rank, int64_t side, bool fake) {
  std::optional<FakeResults> fakes;
  if (fake) fakes.emplace();
  const auto world = make_fake_communicator(rank, 64);
  const MeshPtr mesh = init_device_mesh(*world, "cpu", {8, 8}, {"rows", "columns"});
  parallelize_module(net.ptr(), mesh, {}, {.src_data_rank = std::nullopt});
  const SpecPtr spec = make_spec(mesh, {1, bench::kFieldChannels, 8 * side, 8 * side}, {shard(2), shard(3)});
  const at::Tensor block = fake ? make_fake(spec->local_shape(), at::kFloat) : at::ones(spec->local_shape());
  const at::Tensor x = from_local(block, spec);
  torch::optim::AdamW optimizer(net->parameters(), 1e-3);
  step(net, optimizer, x);
  const CommStats before = mesh->group().stats();
  step(net, optimizer, x);
  const CommStats after = mesh->group().stats();
  Sent sent;
  for (int kind = 0; kind < CommStats::kKinds; ++kind) {
    const auto &a = after.by_kind[kind], &b = before.by_kind[kind];
    sent.numbers[3 * kind] = a.calls - b.calls;
    sent.numbers[3 * kind + 1] = a.messages - b.messages;
    sent.numbers[3 * kind + 2] = a.bytes - b.bytes;
  }
  return sent;
}

TEST(FakeSteps, X14_RanksSendWhatRealBlocksSend) {
  for (const int rank : {0, 27, 63}) {
    SCOPED_TRACE(rank);
    EXPECT_EQ(sent_by(bench::UNet(), rank, 16, true), sent_by(bench::UNet(), rank, 16, false));
    EXPECT_EQ(sent_by(bench::Fno(), rank, 16, true), sent_by(bench::Fno(), rank, 16, false));
    EXPECT_EQ(sent_by(bench::VisionTransformer(128), rank, 16, true),
              sent_by(bench::VisionTransformer(128), rank, 16, false));
  }
}

// LibTorch gives no bytes of a sparse tensor, whose memory is that of its indices and values.
TEST(FakeSteps, X14_SparseTensorsAreAllowedInTimedSteps) {
  const auto world = make_fake_communicator(0, 2);
  const at::Tensor sparse = at::eye(4).to_sparse();
  const FakeResults fakes;
  const int optimizer = 0;

  const StepTapes tapes(
      *world, 1, [] {}, {}, 1);
  for (int step = 0; step < 2; ++step) {
    EXPECT_TRUE(at::mul(sparse, 2).is_sparse());
    note_optimizer_step(&optimizer);
  }

  EXPECT_GT(tapes.host_seconds(), 0);
}

TEST(FakeCallTime, X14_AsMuchMemoryIsUsedAsAKernelWould) {
  FakeCallTime time;

  EXPECT_EQ(time.use_memory(0), 0);
  EXPECT_EQ(time.use_memory(100), 128);
  EXPECT_EQ(time.use_memory(int64_t{1} << 40), FakeCallTime::kMostBytes);
  EXPECT_EQ(time.seconds(), 0);
}

}  // namespace
}  // namespace moonhalo::testing::test_fake_steps
