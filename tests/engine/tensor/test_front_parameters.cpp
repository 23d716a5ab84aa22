// SPDX-License-Identifier: Apache-2.0
// N36: blocks that C++ programs compute from plain parameters. The oracle is the same program on one plain tensor.
#include "moonhalo/engine/tensor/front_parameters.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "moonhalo/engine/dispatch/check_replicated.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/engine/tensor/tensor_meaning.h"
#include "tests/support/modules.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_front_parameters {
namespace {

namespace nn = torch::nn;
using ::testing::HasSubstr;

nn::Sequential front() { return with_values(nn::Sequential(nn::Linear(4, 6), nn::Tanh())); }

at::Tensor loss_of(const at::Tensor& h) { return at::linear(h, make_tensor({3, 6}, 5)).square().mean(); }

std::vector<at::Tensor> gradients_of(const nn::Sequential& net) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : net->parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

// This rank's rows of the batch: uneven, and none on the last rank.
at::Tensor rows_of(const at::Tensor& batch, int64_t coordinate) {
  return coordinate == 0 ? batch.narrow(0, 0, 2) : coordinate == 1 ? batch.narrow(0, 2, 3) : batch.narrow(0, 0, 0);
}

TEST(FrontParameters, N36_GradientsAreThoseOfOneRank) {
  const at::Tensor batch = make_tensor({5, 4}, 2);
  nn::Sequential plain = front();
  loss_of(plain->forward(batch)).backward();
  const auto expected = gradients_of(plain);

  // The ranks along the second dim hold the same rows.
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3, 1}, {3, 2}}) {
    on_mesh(shape, [&](const MeshPtr& mesh) {
      nn::Sequential net = front();
      note_parameters(net->parameters());
      const at::Tensor h = net->forward(rows_of(batch, mesh->coordinate(0)));

      loss_of(from_local(h, mesh, {shard(0), replicate()})).backward();

      const auto gradients = gradients_of(net);
      for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(difference(gradients[i], expected[i], 1e-10), "");
    });
  }
}

TEST(FrontParameters, N36_WhatNothingIsSaidOfIsRefusedWhereAllRanksHaveTheSame) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    nn::Sequential net = front();
    const at::Tensor own = make_tensor({2, 4}, mesh->rank()).requires_grad_();

    const std::string message = message_of([&] { from_local(net->forward(own), mesh, {shard(0)}); });

    EXPECT_THAT(message, HasSubstr("is the same on all ranks"));
    EXPECT_THAT(message, HasSubstr("make it a parameter before it is used (mh::note_parameters)"));
    from_local(net->forward(own), mesh, {replicate()});          // whole on every rank: nothing is to be summed
    const at::Tensor x = from_local(2 * own, mesh, {shard(0)});  // this rank's own rows
    x.sum().backward();
    EXPECT_TRUE(own.grad().equal(at::full({2, 4}, 2.0, at::kDouble)));
    EXPECT_THAT(message_of([&] { check_no_own_data({own}); }), HasSubstr("is in no module"));
  });
}

// Facts of one rank are sent to all: none goes on where another refuses.
TEST(FrontParameters, N36_AllRanksRefuseWhatOneRankHas) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const at::Tensor scale = make_tensor({4}, 1).requires_grad_();
    note_parameters({scale});
    const at::Tensor twice = 2 * scale, block = make_tensor({2, 4}, mesh->rank());
    const at::Tensor x = from_local(block, mesh, {shard(0)}) * twice;

    const at::Tensor mixed = mesh->rank() == 1 ? block * twice : block;
    EXPECT_THAT(message_of([&] { from_local(mixed, mesh, {shard(0)}); }), HasSubstr("is combined with ShardTensors"));

    // One rank alone has a graph: nothing is compared but the number of leaves, and no rank waits.
    const at::Tensor leaf = make_tensor({4}, 7).requires_grad_();
    from_local(mesh->rank() == 1 ? block * leaf : block, mesh, {shard(0)});
  });
}

TEST(FrontParameters, N36_ParametersThatDifferAreRefused) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor scale = make_tensor({4}, mesh->rank()).requires_grad_();
    note_parameters({scale});
    const auto make = [&] { return from_local(make_tensor({2, 4}, mesh->rank()) * scale, mesh, {shard(0)}); };

    EXPECT_THAT(message_of([&] { make(); }), HasSubstr("is not the same on all ranks"));
    EXPECT_THAT(message_of([&] { make(); }), HasSubstr("is not the same on all ranks"));  // again

    set_check_replicated(false);
    make();
    set_check_replicated(true);
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_front_parameters
