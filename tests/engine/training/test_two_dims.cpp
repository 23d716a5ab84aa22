// SPDX-License-Identifier: Apache-2.0
// D11: the memory of a rank where parameters are kept in blocks over 4 ranks, against data 2 x tensor 2. Bytes are
// counted by LibTorch's allocator on the rank's thread, so the figures are the same in every run.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>

#include "moonhalo/engine/model/parallelize.h"
#include "moonhalo/engine/tensor/embed_in_mesh.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/engine/training/fully_shard.h"
#include "moonhalo/engine/training/gradient_sync.h"
#include "tests/support/live_bytes.h"
#include "tests/support/modules.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"

namespace moonhalo::testing::test_two_dims {
namespace {

namespace nn = torch::nn;
constexpr int64_t kWidth = 128, kHeads = 4, kTokens = 16, kBlocks = 4;

struct BlockImpl : nn::Module {
  BlockImpl() {
    register_module("norm1", norm1);
    register_module("norm2", norm2);
    register_module("q", q);
    register_module("k", k);
    register_module("v", v);
    register_module("proj", proj);
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto heads = [&](nn::Linear& layer, const at::Tensor& from) {
      return layer->forward(from).reshape({x.size(0), kTokens, kHeads, kWidth / kHeads}).transpose(1, 2);
    };
    const at::Tensor from = norm1->forward(x);
    const at::Tensor mixed = at::scaled_dot_product_attention(heads(q, from), heads(k, from), heads(v, from));
    const at::Tensor h = x + proj->forward(mixed.transpose(1, 2).reshape({x.size(0), kTokens, kWidth}));
    return h + fc2->forward(at::gelu(fc1->forward(norm2->forward(h))));
  }
  nn::LayerNorm norm1{nn::LayerNormOptions({kWidth})}, norm2{nn::LayerNormOptions({kWidth})};
  nn::Linear q{kWidth, kWidth}, k{kWidth, kWidth}, v{kWidth, kWidth}, proj{kWidth, kWidth}, fc1{kWidth, 4 * kWidth},
      fc2{4 * kWidth, kWidth};
};
TORCH_MODULE(Block);

struct Outcome {
  int64_t peak = 0;
  double loss = 0;
};

/// Two steps of AdamW, the samples of all data ranks together being `batch`.
Outcome train(const MeshPtr& mesh, bool two_dims, int64_t batch) {
  const MeshPtr data = two_dims ? (*mesh)["dp"] : mesh;
  const auto live = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, live);
  std::vector<Block> blocks;
  std::vector<ParameterUnitPtr> units;
  std::vector<at::Tensor> parameters;
  for (int64_t i = 0; i < kBlocks; ++i) {
    blocks.push_back(with_values(Block()));
    if (two_dims) {
      ParallelPlan plan;
      for (const char* layer : {"q", "k", "v", "fc1"}) {
        plan.parameters.emplace_back(std::string(layer) + ".weight", Placements{shard(0)});
        plan.parameters.emplace_back(std::string(layer) + ".bias", Placements{shard(0)});
      }
      for (const char* layer : {"proj", "fc2"})
        plan.parameters.emplace_back(std::string(layer) + ".weight", Placements{shard(1)});
      parallelize_module(blocks.back().ptr(), (*mesh)["tp"], plan);
    }
    units.push_back(fully_shard(*blocks.back(), data, {}));
    for (const at::Tensor& parameter : blocks.back()->parameters()) parameters.push_back(parameter);
  }
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(1e-3));
  const int64_t each = batch / data->size();
  const at::Tensor all =
      (at::arange(batch * kTokens * kWidth, at::kDouble) * 0.37).sin().view({batch, kTokens, kWidth});
  const int64_t begin = (two_dims ? mesh->coordinate("dp") : mesh->rank()) * each;
  const at::Tensor x = local_batch(all.narrow(0, begin, each).clone(), data);
  Outcome outcome;
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    at::Tensor h = x;
    for (int64_t i = 0; i < kBlocks; ++i) h = units[i]->call([&] { return blocks[i]->forward(h); });
    const at::Tensor loss = at::square(h).mean();
    h = at::Tensor();
    loss.backward();
    finish_grad_sync(parameters);
    optimizer.step();
    outcome.loss = full_tensor(loss.detach()).item<double>();
  }
  outcome.peak = live->peak;
  return outcome;
}

TEST(TwoDims, D11_NeedLessMemoryThanBlocksAloneWhereBatchesAreSmall) {
  for (const int64_t batch : {4, 64}) {
    Outcome blocks, both;
    on_ranks(4, [&](Communicator& world) {
      const Outcome own = train(init_device_mesh(world, "cpu", {4}, {"dp"}), false, batch);
      if (world.rank() == 0) blocks = own;
    });
    on_ranks(4, [&](Communicator& world) {
      const MeshPtr mesh = init_device_mesh(world, "cpu", {2, 2}, {"dp", "tp"});
      const Outcome own = train(mesh, true, batch);
      if (world.rank() == 0) both = own;
    });
    const double ratio = static_cast<double>(blocks.peak) / static_cast<double>(both.peak);
    std::printf("batch %lld: blocks %.2f MB, data x tensor %.2f MB, ratio %.2f\n", static_cast<long long>(batch),
                static_cast<double>(blocks.peak) / 1e6, static_cast<double>(both.peak) / 1e6, ratio);
    EXPECT_NEAR(blocks.loss, both.loss, 1e-9 * std::abs(blocks.loss));
    if (batch == 4) EXPECT_GT(ratio, 1.0);
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_two_dims
