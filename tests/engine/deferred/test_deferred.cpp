// SPDX-License-Identifier: Apache-2.0
// Deferred initialisation: recorded while a model is built, done on the owned block alone (V12).
#include "moonhalo/engine/deferred/deferred.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include <mutex>

#include "moonhalo/engine/model/parallelize.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "tests/support/live_bytes.h"
#include "tests/support/placement_cases.h"

namespace moonhalo::testing::test_deferred {
namespace {

using at::Tensor;
using ::testing::HasSubstr;
namespace nn = torch::nn;

// Programs that make a tensor, with the initialisations that models use.
struct Maker {
  const char* name;
  std::function<Tensor()> make;
};

Tensor ortho(int64_t rows, int64_t columns) {
  Tensor w = at::empty({rows, columns}, at::kDouble);
  nn::init::orthogonal_(w);
  return w;
}

const std::vector<Maker> kMakers = {
    {"empty_uniform",
     [] {
       return at::empty({9, 7}, at::kDouble).uniform_(-1, 2);
     }},
    {"zeros",
     [] {
       return at::zeros({9, 7});
     }},
    {"ones",
     [] {
       return at::ones({9, 7}, at::kDouble);
     }},
    {"full",
     [] {
       return at::full({9, 7}, 2.5);
     }},
    {"rand",
     [] {
       return at::rand({9, 7}, at::kDouble);
     }},
    {"randn",
     [] {
       return at::randn({9, 7});
     }},
    {"randint",
     [] {
       return at::randint(-3, 9, {9, 7});
     }},
    {"normal",
     [] {
       return at::normal(1, 2, {9, 7});
     }},
    {"strided",
     [] {
       return at::empty_strided({9, 7}, {1, 9}, at::kDouble).normal_();
     }},
    {"scaled",
     [] {
       return at::randn({9, 7}, at::kDouble) * 0.02 + 1;
     }},
    {"truncated",
     [] {
       return at::empty({9, 7}, at::kDouble).uniform_(-0.9, 0.9).erfinv_().mul_(0.02).clamp_(-0.03, 0.03);
     }},
    {"two_draws",
     [] {
       return at::rand({9, 7}, at::kDouble) - at::randn({9, 7}, at::kDouble);
     }},
    {"second_of_two",
     [] {
       return at::rand({4, 4}), at::rand({9, 7});
     }},
    {"padding_row",
     [] {
       Tensor w = at::randn({9, 7}, at::kDouble);
       w.select(0, 4).zero_();
       return w;
     }},
    {"written_slices",
     [] {
       Tensor w = at::zeros({9, 7}, at::kDouble);
       w.slice(0, 2, 8).slice(1, 1, 7, 2).normal_();
       w.t().select(0, 3).fill_(9);
       return w;
     }},
    {"from_a_plain_tensor",
     [] {
       Tensor w = at::empty({9, 7}, at::kDouble);
       w.copy_(at::arange(63, at::kDouble).view({9, 7}));
       w[3].add_(1);
       return w;
     }},
    {"joined",
     [] {
       return at::cat({at::rand({4, 7}), at::randn({5, 7})});
     }},
    {"transposed",
     [] {
       return at::rand({7, 9}, at::kDouble).t();
     }},
    {"converted",
     [] {
       return at::randn({9, 7}, at::kDouble).to(at::kFloat);
     }},
    {"like",
     [] {
       return at::randn_like(at::empty({9, 7}, at::kDouble));
     }},
    {"dropped",
     [] {
       return at::dropout(at::ones({9, 7}), 0.5, true);
     }},
    {"orthogonal", [] { return ortho(9, 7); }},
    {"unsqueezed",
     [] {
       return at::rand({63}).unsqueeze_(0).view({9, 7});
     }},
    {"with_a_generator",
     [] {
       return at::empty({9, 7}).normal_(0, 1, at::make_generator<at::CPUGeneratorImpl>(4));
     }},
    {"not_deferrable",
     [] {
       return at::arange(63).view({9, 7});
     }},
};

const std::vector<PlacementCase> kWays = {
    {"plain", {1}, {}},
    {"one_rank", {1}, {shard(0)}},
    {"rows", {2}, {shard(0, {3, 6})}},
    {"columns", {3}, {shard(1, {1, 5, 1})}},
    {"empty_block", {3}, {shard(0, {4, 0, 5})}},
    {"replicated", {2}, {replicate()}},
    {"grid", {2, 2}, {shard(0, {3, 6}), shard(1)}},
    {"eight", {8}, {shard(0)}},
};

TEST(Deferred, V12_ValuesAreThoseOfEagerInitialisation) {
  for (const Maker& program : kMakers) {
    SCOPED_TRACE(program.name);
    Tensor expected;
    uint64_t drawn_after = 0;
    {
      const ElementwiseRandom elementwise;
      manual_seed(17);
      expected = program.make();
      drawn_after = ElementRandom::draw_key(std::nullopt);
    }
    for (const PlacementCase& held : kWays) {
      SCOPED_TRACE(held.name);
      std::mutex mutex;
      on_mesh(
          held.mesh,
          [&](const MeshPtr& mesh) {
            manual_seed(17);
            const Tensor deferred = deferred_init(program.make, 0);
            const uint64_t after = ElementRandom::draw_key(std::nullopt);
            const bool plain = held.placements.empty();
            const Tensor made = plain ? materialize(deferred) : materialize(deferred, mesh, held.placements);
            const Tensor whole = plain ? made : full_tensor(made);
            const std::lock_guard lock(mutex);
            EXPECT_EQ(is_deferred(deferred), std::string(program.name) != "not_deferrable");
            EXPECT_EQ(deferred.sizes(), expected.sizes());
            EXPECT_EQ(deferred.strides(), expected.strides());
            EXPECT_EQ(deferred.scalar_type(), expected.scalar_type());
            EXPECT_EQ(deferred.device(), expected.device());
            EXPECT_FALSE(is_deferred(made));
            EXPECT_EQ(after, drawn_after);  // what is drawn later does not depend on deferral
            if (!plain) EXPECT_EQ(spec(made), make_spec(mesh, expected.sizes(), held.placements));
            EXPECT_EQ(whole.scalar_type(), expected.scalar_type());
            EXPECT_TRUE(at::equal(whole, expected)) << whole - expected;
          },
          Fallback::kReplicate);
    }
  }
}

struct NetImpl : nn::Module {
  explicit NetImpl(int64_t width)
      : embed(register_module("embed", nn::Embedding(nn::EmbeddingOptions(11, width).padding_idx(3)))),
        conv(register_module("conv", nn::Conv1d(nn::Conv1dOptions(width, width, 3).padding(1)))),
        norm(register_module("norm", nn::BatchNorm1d(width))),
        fc1(register_module("fc1", nn::Linear(width, 2 * width))),
        lstm(register_module("lstm", nn::LSTM(2 * width, width))),
        fc2(register_module("fc2", nn::Linear(width, 3))) {
    nn::init::orthogonal_(fc2->weight);
    nn::init::normal_(fc2->bias, 0, 0.1);
  }
  Tensor forward(const Tensor& x) {
    Tensor y = embed->forward(x).transpose(1, 2);
    y = norm->forward(conv->forward(y)).transpose(1, 2);
    return fc2->forward(std::get<0>(lstm->forward(fc1->forward(y).relu())));
  }
  nn::Embedding embed;
  nn::Conv1d conv;
  nn::BatchNorm1d norm;
  nn::Linear fc1;
  nn::LSTM lstm;
  nn::Linear fc2;
};

std::map<std::string, Tensor> state_of(const nn::Module& net) {
  std::map<std::string, Tensor> state;
  for (const auto& item : net.named_parameters()) state[item.key()] = item.value().detach();
  for (const auto& item : net.named_buffers()) state[item.key()] = item.value();
  return state;
}

TEST(Deferred, V12_ModulesMaterializeInPlace) {
  const ElementwiseRandom elementwise;
  manual_seed(2);
  NetImpl eager(8);
  manual_seed(2);
  auto net = deferred_init([] { return std::make_shared<NetImpl>(8); }, 0);
  EXPECT_TRUE(is_deferred(net->fc1->weight));
  EXPECT_TRUE(net->fc1->weight.requires_grad());

  materialize_module(*net);

  const auto expected = state_of(eager);
  for (const auto& [name, tensor] : state_of(*net)) {
    ASSERT_FALSE(is_deferred(tensor)) << name;
    EXPECT_TRUE(at::equal(tensor, expected.at(name))) << name;
  }
  EXPECT_TRUE(net->fc1->weight.is_leaf() && net->fc1->weight.requires_grad());
  const Tensor x = at::arange(20).view({4, 5}).remainder(11);
  EXPECT_TRUE(at::equal(net->forward(x), eager.forward(x)));
  net->forward(x).sum().backward();
  EXPECT_TRUE(net->fc1->weight.grad().defined());
}

const ParallelPlan kPlan{.parameters = {{"embed.weight", {shard(0)}},
                                        {"conv.weight", {shard(1)}},
                                        {"fc1.weight", {shard(0)}},
                                        {"fc1.bias", {shard(0)}},
                                        {"fc2.weight", {shard(1)}}}};

TEST(Deferred, V12_ParallelizeModuleMakesOnlyTheOwnedBlocks) {
  Tensor first;
  for (const int64_t ranks : {1, 2, 3, 4, 8}) {
    std::mutex mutex;
    on_mesh(
        {ranks},
        [&](const MeshPtr& mesh) {
          manual_seed(2);
          NetImpl eager(8);
          manual_seed(2);
          const auto net = deferred_init([] { return std::make_shared<NetImpl>(8); }, 0);

          parallelize_module(net, mesh, kPlan);

          const auto expected = state_of(eager);
          for (const auto& [name, tensor] : state_of(*net)) {
            EXPECT_FALSE(is_deferred(tensor)) << name;
            const Tensor whole = is_shard_tensor(tensor) ? full_tensor(tensor) : tensor;
            EXPECT_TRUE(at::equal(whole, expected.at(name))) << name << " on " << ranks;
          }
          EXPECT_TRUE(spec(net->fc1->weight)->is_cut(0));
          EXPECT_TRUE(net->fc1->weight.requires_grad() && net->fc1->weight.is_leaf());
          const Tensor whole = full_tensor(net->fc1->weight.detach());
          const std::lock_guard lock(mutex);
          if (!first.defined()) first = whole;
          EXPECT_TRUE(at::equal(whole, first)) << ranks;
        },
        Fallback::kReplicate);
  }
}

TEST(Deferred, V12_ConvertedModulesStayDeferred) {
  const ElementwiseRandom elementwise;
  manual_seed(4);
  nn::Linear eager(6, 5);
  eager->to(at::kDouble);
  manual_seed(4);
  auto net = deferred_init([] { return nn::Linear(6, 5); }, 0);
  net->to(at::kDouble);
  EXPECT_TRUE(is_deferred(net->weight));
  EXPECT_EQ(net->weight.scalar_type(), at::kDouble);
  materialize_module(*net);
  EXPECT_TRUE(at::equal(net->weight, eager->weight));
}

TEST(Deferred, V12_FactoriesOnAMesh) {
  const std::pair<const char*, std::function<Tensor()>> factories[] = {
      {"randn", [] { return at::randn({6, 5}); }},        {"rand", [] { return at::rand({6, 5}, at::kDouble); }},
      {"randint", [] { return at::randint(9, {6, 5}); }}, {"zeros", [] { return at::zeros({6, 5}); }},
      {"full", [] { return at::full({6, 5}, 3); }},       {"eye", [] { return at::eye(6, 5); }},
      {"arange", [] { return at::arange(6); }},           {"scalar", [] { return at::scalar_tensor(2.0); }},
      {"randperm", [] { return at::randperm(6); }},
  };
  for (const auto& [name, make] : factories) {
    Tensor expected;
    for (const int64_t ranks : {1, 2, 3, 4, 8}) {
      std::mutex mutex;
      on_mesh({ranks}, [&, &make = make, name = name](const MeshPtr& mesh) {
        manual_seed(6);
        const Tensor made = make_on_mesh(mesh, {std::string(name) == "scalar" ? replicate() : shard(0)}, make);
        const Tensor whole = full_tensor(made);
        manual_seed(6);
        const Tensor plain = make();
        const std::lock_guard lock(mutex);
        if (!expected.defined()) expected = plain;
        EXPECT_TRUE(at::equal(plain, expected)) << name;
        EXPECT_TRUE(at::equal(whole, expected)) << name << " on " << ranks;
      });
    }
  }
}

TEST(Deferred, V12_SmallTensorsAreMadeAtOnce) {
  const DeferredInit scope;
  EXPECT_FALSE(is_deferred(at::zeros({1023})));
  EXPECT_TRUE(is_deferred(at::zeros({1024})));
  EXPECT_FALSE(is_deferred(at::arange(5000)));
  EXPECT_EQ(at::scalar_tensor(3).item<int>(), 3);
  {
    const DeferredInit nested(0);
    EXPECT_TRUE(is_deferred(at::zeros({3})));
    EXPECT_FALSE(is_deferred(at::zeros({})));
  }
  EXPECT_FALSE(is_deferred(at::zeros({3})));
}

TEST(Deferred, V12_WhatNeedsValuesIsRefused) {
  const Tensor w = deferred_init([] { return at::rand({40, 40}); });
  EXPECT_FALSE(is_deferred(at::zeros({5000})));
  const Tensor leaf = deferred_init([] { return at::rand({40, 40}).requires_grad_(); });
  Tensor plain = at::zeros({40, 40});
  const std::pair<const char*, std::function<void()>> cases[] = {
      {"_local_scalar_dense: asks for values", [&] { w.select(0, 0).select(0, 0).item<double>(); }},
      {"equal: asks for values", [&] { at::equal(w, w); }},
      {"copy_: writes values that are not there yet to a plain tensor", [&] { plain.copy_(w); }},
      {"mul: a gradient would have to be recorded", [&] { leaf * 2; }},
  };
  for (const auto& [text, call] : cases) {
    const std::string message = message_of(call);
    EXPECT_THAT(message, HasSubstr(text));
    EXPECT_THAT(message, HasSubstr("\n  fix "));
  }
  EXPECT_ANY_THROW(w.const_data_ptr<float>());

  Tensor source = at::ones({40, 40});
  const Tensor copy = deferred_init([&] { return at::empty({40, 40}).copy_(source); });
  EXPECT_TRUE(at::equal(materialize(copy), source));
  source.add_(1);
  EXPECT_THAT(message_of([&] { materialize(copy); }), HasSubstr("has been written since"));
}

// Bytes of all blocks that live at once, over the ranks of a model of 16 MB on four ranks.
TEST(Deferred, V12_OnlyOwnedBlocksTakeMemory) {
  on_mesh({4}, [](const MeshPtr& mesh) {
    constexpr int64_t kWidth = 1024;
    const auto live = std::make_shared<LiveBytes>();
    const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, live);
    manual_seed(1);
    const auto net = deferred_init([&] {
      nn::Sequential layers;
      for (int i = 0; i < 4; ++i) layers->push_back(nn::Linear(kWidth, kWidth));
      return layers.ptr();
    });
    ParallelPlan plan;
    for (int i = 0; i < 4; ++i) plan.parameters.push_back({std::to_string(i) + ".weight", {shard(i % 2)}});
    for (const Tensor& parameter : net->parameters()) {
      if (parameter.dim() == 2) EXPECT_TRUE(is_deferred(parameter));
      EXPECT_TRUE(!is_deferred(parameter) || !parameter.has_storage());
    }

    parallelize_module(net, mesh, plan);

    int64_t bytes = 0, whole = 0;
    for (const Tensor& parameter : net->parameters()) {
      whole += static_cast<int64_t>(parameter.numel() * parameter.element_size());
      bytes += static_cast<int64_t>(shard_impl(parameter)->local().storage().nbytes());
    }
    EXPECT_LT(bytes, whole / 4 + 20 * kWidth);
    EXPECT_LT(live->peak, whole * 35 / 100);
    EXPECT_GE(live->now, whole / 4);
  });
}

// Results of steps are freed after their last use.
TEST(Deferred, V12_StepsInBetweenTakeNoMemory) {
  static constexpr int64_t kBytes = 256 * 1024;
  const auto peak_of = [](int steps) {
    const Tensor w = deferred_init([&] {
      Tensor made = at::rand({256, 128}, at::kDouble);
      for (int i = 0; i < steps; ++i) made = made * 0.5 + 1;
      return made;
    });
    const auto live = std::make_shared<LiveBytes>();
    const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, live);
    const Tensor made = materialize(w);
    EXPECT_GE(live->now, kBytes);
    return live->peak;
  };
  EXPECT_LE(peak_of(20), 3 * kBytes);
}

}  // namespace
}  // namespace moonhalo::testing::test_deferred
