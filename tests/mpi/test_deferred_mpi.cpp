// SPDX-License-Identifier: Apache-2.0
// V12: models that are built without memory, with what every process holds at its peak. A process that has done nothing
// yet holds 150 MB of LibTorch, so that the growth is measured.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "moonhalo/engine/deferred/deferred.h"
#include "moonhalo/engine/model/parallelize.h"
#include "moonhalo/engine/random/random.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/process_memory.h"

namespace moonhalo::testing::test_deferred_mpi {
namespace {

namespace nn = torch::nn;
constexpr double kMiB = 1 << 20;

/// Eight square layers, in rows or columns by turns.
std::shared_ptr<nn::SequentialImpl> built(const MeshPtr& mesh, int64_t width) {
  manual_seed(1);
  auto net = deferred_init([width] {
    nn::Sequential layers;
    for (int i = 0; i < 8; ++i) layers->push_back(nn::Linear(nn::LinearOptions(width, width).bias(false)));
    return layers.ptr();
  });
  ParallelPlan plan;
  for (int i = 0; i < 8; ++i) plan.parameters.push_back({std::to_string(i) + ".weight", {shard(i % 2)}});
  parallelize_module(net, mesh, plan);
  return net;
}

// 512 MiB in layers of 64: none is whole on any rank, and nothing stays beside the blocks.
TEST(MpiMemory, V12_ADeferredModelGrowsByItsBlocksAlone) {
  const CommunicatorPtr world = make_mpi_world();
  const MeshPtr mesh = init_device_mesh(*world, "cpu", {world->size()});
  constexpr int64_t kWidth = 4096;
  const double whole = 8.0 * kWidth * kWidth * sizeof(float), share = whole / world->size();
  built(mesh, 64);  // code that is run for the first time

  std::shared_ptr<nn::SequentialImpl> net;
  const double grown = memory_growth([&] { net = built(mesh, kWidth); });

  EXPECT_LE(grown, share + 16 * kMiB);
  EXPECT_GE(grown, 0.95 * share);  // the figures mean something
  for (const at::Tensor& parameter : net->parameters())
    EXPECT_LE(to_local(parameter.detach()).numel(), kWidth * ((kWidth + world->size() - 1) / world->size()));
  std::printf("[ figures  ] rank %d of %d: %.0f MiB of %.0f, grown by %.0f\n", world->rank(), world->size(),
              share / kMiB, whole / kMiB, grown / kMiB);
  world->barrier();
}

}  // namespace
}  // namespace moonhalo::testing::test_deferred_mpi
