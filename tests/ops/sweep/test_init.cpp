// SPDX-License-Identifier: Apache-2.0
// torch::nn::init on ShardTensors, and on plain tensors that ranks build: one set of weights for any cut and any number
// of ranks (X02).
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/init.h>

#include <mutex>

#include "moonhalo/engine/random/random.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/placement_cases.h"

namespace moonhalo::testing::test_init {
namespace {

using at::Tensor;
namespace init = torch::nn::init;

struct Initialiser {
  const char* name;
  std::function<void(Tensor)> run;
  std::vector<int64_t> shape = {9, 7, 2};
};

void truncated_normal(const Tensor& w) {
  const at::NoGradGuard no_grad;
  w.uniform_(-0.95, 0.95).erfinv_().mul_(0.02 * std::sqrt(2.0)).clamp_(-0.04, 0.04);
}

const std::vector<Initialiser> kInitialisers = {
    {"uniform_", [](Tensor w) { init::uniform_(w, -2, 1); }},
    {"normal_", [](Tensor w) { init::normal_(w, 1, 2); }},
    {"constant_", [](Tensor w) { init::constant_(w, 0.5); }},
    {"ones_", [](Tensor w) { init::ones_(w); }},
    {"zeros_", [](Tensor w) { init::zeros_(w); }},
    {"kaiming_uniform_", [](Tensor w) { init::kaiming_uniform_(w, std::sqrt(5)); }},
    {"kaiming_normal_", [](Tensor w) { init::kaiming_normal_(w, 0, torch::kFanOut, torch::kReLU); }},
    {"xavier_uniform_", [](Tensor w) { init::xavier_uniform_(w, 2); }},
    {"xavier_normal_", [](Tensor w) { init::xavier_normal_(w); }},
    {"trunc_normal", truncated_normal},
    {"orthogonal_", [](Tensor w) { init::orthogonal_(w, 1.5); }},
    {"orthogonal_wide", [](Tensor w) { init::orthogonal_(w); }, {4, 6}},
    {"eye_", [](Tensor w) { init::eye_(w); }, {9, 7}},
    {"dirac_", [](Tensor w) { init::dirac_(w); }},
    {"sparse_", [](Tensor w) { init::sparse_(w, 0.3); }, {9, 7}},
};

const std::vector<PlacementCase> kWays = {
    {"one_rank", {1}, {shard(0)}},
    {"rows_on_2", {2}, {shard(0)}},
    {"columns_on_2", {2}, {shard(1)}},
    {"rows_on_3", {3}, {shard(0)}},
    {"columns_on_3", {3}, {shard(1)}},
    {"replicated_on_3", {3}, {replicate()}},
    {"grid_on_4", {2, 2}, {shard(0), shard(1)}},
    {"rows_on_4", {4}, {shard(0)}},
    {"rows_on_8", {8}, {shard(0)}},
    {"grid_on_8", {2, 4}, {shard(1), shard(0)}},
};

TEST(Init, X02_WeightsAreTheSameOnAnyCut) {
  for (const Initialiser& one : kInitialisers) {
    Tensor expected;
    {
      const ElementwiseRandom elementwise;
      manual_seed(3);
      expected = at::zeros(one.shape, at::kDouble);
      one.run(expected);
    }
    for (const PlacementCase& held : kWays) {
      SCOPED_TRACE(std::string(one.name) + " " + held.name);
      std::mutex mutex;
      std::vector<Tensor> wholes;
      std::string message;
      on_mesh(held.mesh, [&](const MeshPtr& mesh) {
        manual_seed(3);
        Tensor weight = shard_of(at::zeros(one.shape, at::kDouble), mesh, held.placements).requires_grad_();
        const std::string text = message_of([&] { one.run(weight); });
        const std::lock_guard lock(mutex);
        message = text;
      });
      if (!message.empty()) {
        // Elements written one by one, through views that a cut dim turns into copies, are refused; so is an out=
        // factory.
        EXPECT_NE(message.find("\n  fix "), std::string::npos) << message;
        EXPECT_TRUE(std::string(one.name) == "eye_" || std::string(one.name) == "dirac_" ||
                    std::string(one.name) == "sparse_")
            << message;
        continue;
      }
      on_mesh(held.mesh, [&](const MeshPtr& mesh) {
        manual_seed(3);
        Tensor weight = shard_of(at::zeros(one.shape, at::kDouble), mesh, held.placements).requires_grad_();
        one.run(weight);
        const Tensor whole = full_tensor(weight.detach());
        const std::lock_guard lock(mutex);
        wholes.push_back(whole);
      });
      for (const Tensor& whole : wholes) EXPECT_TRUE(at::equal(whole, expected));
    }
  }
}

// Built plain on every rank, as a script does before it parallelizes a model.
TEST(Init, X02_PlainWeightsDoNotDependOnTheNumberOfRanks) {
  Tensor expected;
  for (const int64_t ranks : {1, 2, 3, 4, 8}) {
    std::mutex mutex;
    on_mesh({ranks}, [&](const MeshPtr&) {
      manual_seed(5);
      Tensor weight = at::empty({7, 5});
      init::kaiming_uniform_(weight);
      const Tensor all = at::cat({weight.flatten(), at::randn({3}), at::dropout(at::ones({9}), 0.5, true)});
      const std::lock_guard lock(mutex);
      if (!expected.defined()) expected = all;
      EXPECT_TRUE(at::equal(all, expected)) << ranks;
    });
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_init
