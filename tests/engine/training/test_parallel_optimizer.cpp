// SPDX-License-Identifier: Apache-2.0
// build_optimizer and EMA for torch::nn models in blocks, against LibTorch's optimizers and the same model whole.
#include "moonhalo/engine/training/parallel_optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include "moonhalo/engine/model/parallelize.h"
#include "moonhalo/engine/tensor/embed_in_mesh.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/engine/training/clip.h"
#include "moonhalo/engine/training/ema.h"
#include "moonhalo/engine/training/fully_shard.h"
#include "tests/support/modules.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_parallel_optimizer {
namespace {

namespace nn = torch::nn;
using ::testing::HasSubstr;

nn::Sequential network() {
  return with_values(nn::Sequential(nn::Linear(6, 40), nn::BatchNorm1d(40), nn::Tanh(), nn::Linear(40, 3)));
}

at::Tensor plain(const at::Tensor& tensor) { return is_shard_tensor(tensor) ? full_tensor(tensor) : tensor; }

void expect_same_tensors(nn::Sequential& net, nn::Sequential& whole, const char* when) {
  for (const auto& item : whole->named_parameters())
    EXPECT_EQ(difference(plain(net->named_parameters()[item.key()].detach()), item.value().detach(), 1e-10), "")
        << when << ": " << item.key();
  for (const auto& item : whole->named_buffers())
    EXPECT_EQ(difference(plain(net->named_buffers()[item.key()]), item.value(), 1e-10), "")
        << when << ": " << item.key();
}

// Blocks of {4, 1, 3} or {5, 3} samples; 3 steps with clipping and an average.
TEST(ParallelOptimizer, N30_N34_TrainsAndClipsAsOneDevice) {
  const at::Tensor x = make_tensor({8, 6}, 21), y = make_tensor({8, 3}, 22);
  nn::Sequential whole = network();
  torch::optim::AdamW plain_optimizer(whole->parameters(), torch::optim::AdamWOptions(0.05));
  Ema plain_average(*whole, {.decay = 0.9, .warmup = true});
  std::vector<at::Tensor> norms;
  for (int step = 0; step < 3; ++step) {
    plain_optimizer.zero_grad();
    at::mse_loss(whole->forward(x), y).backward();
    norms.push_back(clip_grad_norm(whole->parameters(), 0.05));
    plain_optimizer.step();
    plain_average.update(*whole);
  }
  nn::Sequential averaged = network();
  plain_average.apply_to(*averaged);

  for (const int64_t ranks : {2, 3}) {
    on_mesh({ranks}, [&](const MeshPtr& mesh) {
      const std::vector<int64_t> sizes = ranks == 2 ? std::vector<int64_t>{5, 3} : std::vector<int64_t>{4, 1, 3};
      nn::Sequential net = network();
      fully_shard(*net, mesh, {.min_numel = 64});
      ParallelOptimizer optimizer = build_optimizer<torch::optim::AdamW>(*net, torch::optim::AdamWOptions(0.05));
      Ema average(*net, {.decay = 0.9, .warmup = true});
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        const at::Tensor in = distribute_tensor(x, mesh, {shard(0, sizes)});
        at::mse_loss(call(net, in), distribute_tensor(y, mesh, {shard(0, sizes)})).backward();
        EXPECT_EQ(difference(optimizer.clip_gnorm(0.05), norms[step], 1e-10), "");
        optimizer.step();
        average.update(*net);
      }
      expect_same_tensors(net, whole, "trained");
      average.swap(*net);
      expect_same_tensors(net, averaged, "averages");
      EXPECT_THAT(message_of([&] { average.update(*net); }), HasSubstr("the averages are in the module"));
      average.swap(*net);
      expect_same_tensors(net, whole, "swapped back");
      EXPECT_EQ(average.updates(), 3);
    });
  }
}

TEST(ParallelOptimizer, N32_N33_N35_SumsScalesAndHooks) {
  const at::Tensor x = make_tensor({6, 6}, 23);
  nn::Linear whole = with_values(nn::Linear(6, 4));
  whole->forward(x).pow(2).sum().backward();
  on_mesh({2}, [&](const MeshPtr& mesh) {
    nn::Linear net = with_values(nn::Linear(6, 4));
    replicate(*net, mesh);
    ParallelOptimizer optimizer = build_optimizer<torch::optim::SGD>(*net, torch::optim::SGDOptions(0.1));
    int buckets = 0;
    optimizer.register_reducer_pre_hook([&](at::Tensor& bucket) { bucket.div_(4), ++buckets; });
    optimizer.register_reducer_post_hook([&](at::Tensor& bucket) { bucket.mul_(4), ++buckets; });
    call(net, distribute_tensor(x, mesh, {shard(0, {5, 1})})).pow(2).sum().backward();
    EXPECT_THAT(message_of([&] { optimizer.scale_grads(2); }), HasSubstr("scale_grads"));
    optimizer.sync_shard_grad();
    EXPECT_EQ(buckets, 2);
    optimizer.sync_shard_grad();
    EXPECT_EQ(buckets, 2);
    optimizer.scale_grads(0.5);
    EXPECT_EQ(difference(plain(net->weight.grad()), whole->weight.grad() / 2, 1e-10), "");
    EXPECT_EQ(difference(plain(net->bias.grad()), whole->bias.grad() / 2, 1e-10), "");
  });
}

TEST(ParallelOptimizer, SumsAfterEachEvaluationOfAClosure) {
  const at::Tensor x = make_tensor({6, 6}, 24);
  nn::Linear whole = with_values(nn::Linear(6, 4));
  const auto options = torch::optim::LBFGSOptions(0.1).max_iter(3);
  torch::optim::LBFGS plain_optimizer(whole->parameters(), options);
  plain_optimizer.step([&] {
    plain_optimizer.zero_grad();
    const at::Tensor loss = whole->forward(x).pow(2).mean();
    loss.backward();
    return loss;
  });
  on_mesh({3}, [&](const MeshPtr& mesh) {
    nn::Linear net = with_values(nn::Linear(6, 4));
    replicate(*net, mesh);
    const at::Tensor in = distribute_tensor(x, mesh, {shard(0, {1, 0, 5})});
    const ParallelOptimizer optimizer = build_optimizer<torch::optim::LBFGS>(*net, options);
    const at::Tensor loss = optimizer.step([&] {
      optimizer.optimizer().zero_grad();
      const at::Tensor value = call(net, in).pow(2).mean();
      value.backward();
      return value;
    });
    EXPECT_TRUE(loss.defined());
    EXPECT_EQ(difference(plain(net->weight.detach()), whole->weight.detach(), 1e-10), "");
  });
}

TEST(Ema, RefusesOtherModulesAndPlacements) {
  EXPECT_THAT(message_of([] { const Ema average(*nn::Linear(2, 2), {.decay = 1.5}); }), HasSubstr("decay is 1.5"));
  on_mesh({2}, [](const MeshPtr& mesh) {
    nn::Linear net = with_values(nn::Linear(4, 3));
    Ema average(*net);
    EXPECT_THAT(message_of([&] { average.apply_to(*nn::Linear(nn::LinearOptions(4, 3).bias(false))); }),
                HasSubstr("EMA: apply_to: the module has no 'bias'"));
    replicate(*net, mesh);
    EXPECT_THAT(message_of([&] { average.update(*net); }), HasSubstr("'weight' was placed since"));
  });
}

TEST(Ema, AveragesOfTwoBytesAreFloats) {
  nn::Linear net(2, 2);
  net->to(at::kBFloat16);
  Ema average(*net);
  EXPECT_EQ(average.averages()[0].tensor.scalar_type(), at::kFloat);
  average.update(*net);
  EXPECT_EQ(difference(average.averages()[0].tensor, net->weight.detach().to(at::kFloat), 1e-6), "");
}

// A weight that two modules share, each a unit of its own, and a part that was copied before.
TEST(FullyShard, N31_CallsForInnerModulesShareWhatTheyPlaced) {
  const at::Tensor x = make_tensor({6, 40}, 25);
  const auto make = [] {
    nn::Linear first(nn::LinearOptions(40, 40).bias(false)), second(nn::LinearOptions(40, 40).bias(false)),
        third(40, 40);
    nn::Sequential net = with_values(nn::Sequential(first, nn::Tanh(), second, third));
    module_tree(*second)->replace_tensor("weight", first->weight);
    return net;
  };
  nn::Sequential whole = make();
  whole->forward(x).pow(2).sum().backward();
  on_mesh({3}, [&](const MeshPtr& mesh) {
    nn::Sequential net = make();
    fully_shard(*net->ptr(0), mesh);
    fully_shard(*net->ptr(2), mesh);
    replicate(*net->ptr(3), mesh);
    fully_shard(*net, mesh);
    EXPECT_TRUE(net->named_parameters(true)["0.weight"].is_same(net->named_parameters(true)["2.weight"]));
    EXPECT_TRUE(spec(net->named_parameters()["0.weight"])->is_cut(0));
    EXPECT_TRUE(spec(net->named_parameters()["3.weight"])->is_replicate());
    call(net, distribute_tensor(x, mesh, {shard(0, {3, 0, 3})})).pow(2).sum().backward();
    finish_grad_sync(net->parameters());
    for (const char* name : {"0.weight", "3.weight", "3.bias"}) {
      EXPECT_EQ(difference(plain(net->named_parameters()[name].grad()), whole->named_parameters()[name].grad(), 1e-9),
                "")
          << name;
    }
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_parallel_optimizer
