// SPDX-License-Identifier: Apache-2.0
// Peak memory of building a model of 1 GB (10^9 bytes of float32) that is divided over the ranks, deferred and at once:
// VmHWM of a rank before, after and its growth. VmHWM counts the pages of LibTorch's libraries in every process, though
// the ranks of one machine share them; "its share" is the peak with every shared page divided by the processes that use
// it (Pss). Under mpirun every process is a rank; alone, four threads are, and a rank's figures are a quarter of the
// process's. Checks that the values are those of the whole model.
//   mpirun -n 4 bench_deferred [--eager]          bench_deferred [--eager]
#include <ATen/ATen.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "moonhalo/engine/launch/launch.h"
#include "moonhalo/engine/moonhalo.h"
#include "tests/support/process_memory.h"

namespace mh = moonhalo;
namespace nn = torch::nn;
namespace {

constexpr int64_t kWidth = 4000, kLayers = 15, kWords = 2500;
constexpr double kGB = 1e9;

/// A line of /proc/self/status, or another file of that form, in GB.
double memory(const std::string& key, const std::string& file = "/proc/self/status") {
  return static_cast<double>(mh::testing::process_memory(key, file)) / kGB;
}

std::shared_ptr<nn::SequentialImpl> make_model() {
  nn::Sequential layers(nn::Embedding(kWords, kWidth));
  for (int64_t i = 0; i < kLayers; ++i) layers->push_back(nn::Linear(kWidth, kWidth));
  return layers.ptr();
}

mh::ParallelPlan plan_of(const nn::Module& model) {
  mh::ParallelPlan plan;
  int64_t index = 0;
  for (const auto& item : model.named_parameters()) {
    if (item.value().dim() == 2) plan.parameters.push_back({item.key(), {mh::shard(index++ % 2)}});
  }
  return plan;
}

/// Largest difference of this rank's blocks from what one plain tensor at a time gives.
double worst_difference(const nn::Module& model) {
  const mh::ElementwiseRandom random;
  const at::NoGradGuard no_grad;
  mh::manual_seed(7);
  double worst = 0;
  const auto compare = [&](const at::Tensor& block, const at::Tensor& whole) {
    const mh::SpecPtr& spec = mh::spec(block);
    at::Tensor part = whole;
    for (int64_t d = 0; d < spec->ndim(); ++d) part = part.narrow(d, spec->offsets()[d], spec->local_shape()[d]);
    const at::Tensor local = mh::to_local(block);
    if (local.numel() > 0) worst = std::max(worst, (local - part).abs().max().item<double>());
  };
  const auto parameters = model.parameters();
  size_t next = 0;
  compare(parameters[next++], nn::Embedding(kWords, kWidth)->weight);
  for (int64_t i = 0; i < kLayers; ++i) {
    nn::Linear layer(kWidth, kWidth);
    compare(parameters[next++], layer->weight);
    compare(parameters[next++], layer->bias);
  }
  return worst;
}

void build(mh::Communicator& world, bool eager, int ranks_in_process) {
  const auto mesh = mh::init_device_mesh(world, "cpu", {world.size()});
  const double before = memory("VmHWM") / ranks_in_process;
  const double resident = memory("VmRSS") / ranks_in_process, files = memory("RssFile") / ranks_in_process;
  world.barrier();
  mh::manual_seed(7);
  const mh::ElementwiseRandom random;
  const auto model = eager ? make_model() : mh::deferred_init(make_model);
  mh::parallelize_module(model, mesh, plan_of(*model), {.src_data_rank = std::nullopt});
  world.barrier();
  const double peak = memory("VmHWM") / ranks_in_process;
  const double unshared = (memory("VmRSS") - memory("Pss", "/proc/self/smaps_rollup")) / ranks_in_process;
  const double share = peak - unshared;
  world.barrier();

  double whole = 0, owned = 0;
  for (const at::Tensor& parameter : model->parameters()) {
    whole += static_cast<double>(parameter.numel() * 4) / kGB;
    owned += static_cast<double>(mh::to_local(parameter).numel() * 4) / kGB;
  }
  const double worst = worst_difference(*model);
  for (int rank = 0; rank < world.size(); ++rank) {
    world.barrier();
    if (rank != world.rank()) continue;
    std::printf(
        "rank %d of %d, %s: model %.3f GB, owned %.3f GB | before: peak %.3f GB (resident %.3f, of "
        "that files %.3f) | "
        "peak %.3f GB, its share %.3f GB, growth %.3f GB | largest difference from the whole model "
        "%g\n",
        rank, world.size(), eager ? "eager" : "deferred", whole, owned, before, resident, files, peak, share,
        peak - resident, worst);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool eager = argc > 1 && std::string(argv[1]) == "--eager";
  at::set_num_threads(1);
  const mh::Launch launch = mh::detect_launch();
  if (launch.size > 1) {
    build(*mh::make_world("", launch), eager, 1);
  } else {
    constexpr int kRanks = 4;
    mh::run_ranks(kRanks, [&](mh::Communicator& world) { build(world, eager, kRanks); });
  }
}
