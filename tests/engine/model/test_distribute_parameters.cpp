// SPDX-License-Identifier: Apache-2.0
// Places of parameters and their gradients: cuts that are kept, gradients reduced together, hooks on leaves.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/exchange/redistribution.h"
#include "moonhalo/engine/model/distribute_parameters.h"
#include "moonhalo/engine/model/parallel_plan.h"
#include "moonhalo/engine/tensor/gradient_hooks.h"
#include "moonhalo/engine/training/gradient_sync.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_distribute_parameters {
namespace {

using List = std::vector<at::Tensor>;
using ::testing::HasSubstr;

TEST(KeepSizes, CountsNegativeDimsAndLeavesGivenSizes) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const SpecPtr own = make_spec(mesh, {3, 7}, {shard(1, {5, 2})});

    EXPECT_EQ(make_spec(mesh, {3, 7}, inherit_block_sizes({shard(1)}, *own)), own);
    EXPECT_EQ(make_spec(mesh, {3, 7}, inherit_block_sizes({shard(-1)}, *own)), own);
    EXPECT_EQ(make_spec(mesh, {3, 7}, inherit_block_sizes({shard(-1, {3, 4})}, *own)),
              make_spec(mesh, {3, 7}, {shard(1, {3, 4})}));
    EXPECT_EQ(make_spec(mesh, {3, 7}, inherit_block_sizes({shard(0)}, *own)), make_spec(mesh, {3, 7}, {shard(0)}));
  });
}

using Planned = ModulePlan::Tensor;

TEST(DistributeParameters, V02_AGradientGoesWithItsTensor) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const at::Tensor weight = make_tensor({7, 2}, 1).requires_grad_(), bias = make_tensor({7}, 2);
    weight.mutable_grad() = make_tensor({7, 2}, 3);
    const Placements uneven{shard(0, {1, 5, 1})};
    for (const bool blocks : {false, true}) {
      List own{weight, bias, at::Tensor()};
      if (blocks) {
        for (at::Tensor& tensor : own) {
          if (tensor.defined()) tensor = to_local(shard_of(tensor, mesh, uneven)).detach();
        }
        own[0].requires_grad_().mutable_grad() = to_local(shard_of(weight.grad(), mesh, uneven));
      }

      const List placed = distribute_parameters(
          {{"weight", own[0], Planned{uneven}}, {"bias", own[1], Planned{uneven}}, {"none", own[2], Planned{uneven}}},
          mesh, 0, blocks);

      ASSERT_EQ(placed.size(), 3U);
      EXPECT_EQ(spec(placed[0]), make_spec(mesh, {7, 2}, uneven));
      EXPECT_TRUE(placed[0].requires_grad() && placed[0].is_leaf());
      EXPECT_EQ(difference(full_tensor(placed[0].detach()), weight.detach(), 0), "");
      ASSERT_TRUE(placed[0].grad().defined());
      EXPECT_EQ(spec(placed[0].grad()), spec(placed[0]));
      EXPECT_EQ(difference(full_tensor(placed[0].grad()), weight.grad(), 0), "");
      EXPECT_FALSE(placed[1].requires_grad() || placed[1].grad().defined() || placed[2].defined());
    }
  });
}

TEST(DistributeParameters, V02_ASharedTensorStaysOneAsTheListedEntrySays) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor tied = make_tensor({4, 6}, 1), sharded = shard_of(make_tensor({4}, 2), mesh, {shard(0)});
    const Planned silent{{replicate()}, {}, false}, rows{{shard(0)}, {}, true}, columns{{shard(1)}, {}, true};

    const List placed = distribute_parameters(
        {{"a", tied, silent}, {"b", tied, columns}, {"c", sharded, silent}, {"d", tied, silent}}, mesh, 0, false);

    EXPECT_TRUE(placed[0].is_same(placed[1]) && placed[0].is_same(placed[3]));
    EXPECT_EQ(spec(placed[0]), make_spec(mesh, {4, 6}, {shard(1)}));
    EXPECT_FALSE(placed[2].defined());  // it has a cut, of which the plan says nothing
    EXPECT_THAT(message_of([&] {
                  distribute_parameters({{"a", tied, rows}, {"b", tied, columns}}, mesh, 0, false);
                }),
                HasSubstr("'b' is shared with another module, whose entry in the plan differs"));
  });
}

// One message may hold gradients of one type and one reduction only.
TEST(FinishGradSync, TypesAndReductionsStayApart) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const std::vector<std::pair<at::ScalarType, ReduceOp>> kinds = {{at::kFloat, ReduceOp::kSum},
                                                                    {at::kDouble, ReduceOp::kSum},
                                                                    {at::kFloat, ReduceOp::kAvg},
                                                                    {at::kFloat, ReduceOp::kSum},
                                                                    {at::kDouble, ReduceOp::kMax}};
    List parameters;
    for (const auto& [dtype, op] : kinds) {
      at::Tensor p = from_local(at::ones({3}, dtype), replicated(mesh, {3})).detach().requires_grad_();
      const double addend = 2 + static_cast<double>(mesh->rank());  // 2 and 3; a third has no place in float32
      p.mutable_grad() = from_local(at::full({3}, addend, dtype).div(3), make_spec(mesh, {3}, {partial(op)})).detach();
      parameters.push_back(p);
    }

    finish_grad_sync(parameters);

    for (size_t i = 0; i < kinds.size(); ++i) {
      const auto [dtype, op] = kinds[i];
      const double expected = (op == ReduceOp::kSum ? 5 : op == ReduceOp::kAvg ? 2.5 : 3) / 3;
      const at::Tensor block = to_local(parameters[i].grad());
      EXPECT_EQ(parameters[i].grad().scalar_type(), dtype) << i;
      EXPECT_EQ(block.scalar_type(), dtype) << i;
      EXPECT_NEAR(block[0].item<double>(), expected, dtype == at::kDouble ? 1e-15 : 1e-6) << i;
    }
  });
}

// A leaf may be given other data; a cut that was asked for its gradient then means nothing any more.
TEST(PlaceGradient, IsForgottenForDataOfAnotherShape) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    at::Tensor p = shard_of(make_tensor({4, 3}, 1), mesh, {replicate()}).requires_grad_();
    place_gradient(p, Placements{shard(0)});
    (p * p).sum().backward();
    EXPECT_TRUE(spec(p.grad())->placements()[0].is_shard());

    p.mutable_grad() = at::Tensor();
    p.set_data(shard_of(make_tensor({6, 3}, 2), mesh, {replicate()}));
    (p * p).sum().backward();

    EXPECT_EQ(difference(full_tensor(p.grad()), 2 * full_tensor(p.detach()), 1e-12), "");
  });
}

TEST(GuardGradient, EveryResultOfAPlainLeafsViewIsReduced) {
  const at::Tensor full = make_tensor({3, 3}, 1), weights = make_tensor({2, 3}, 5);
  const auto loss = [](const at::Tensor& x, const at::Tensor& w) {
    const List rows = w.unbind(0);
    return (x * rows[0]).sum() + (x * rows[1]).exp().sum();
  };
  const at::Tensor expected = weights.clone().requires_grad_();
  loss(full, expected).backward();
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(full, mesh, {shard(0)}).requires_grad_(), w = weights.clone().requires_grad_();

    loss(x, w).backward();

    EXPECT_FALSE(is_shard_tensor(w.grad()));
    EXPECT_EQ(difference(w.grad(), expected.grad(), 1e-12), "");
  });
}

TEST(ToLocalWithAGradient, RefusesPlacementsThatCutOtherwise) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(make_tensor({4, 3}, 1), mesh, {shard(0)});
    EXPECT_THAT(message_of([&] { to_local(x, Placements{replicate()}); }),
                HasSubstr("to_local: a gradient of placements that cut otherwise"));
    EXPECT_THAT(message_of([&] { to_local(x, Placements{shard(1)}); }),
                HasSubstr("to_local: a gradient of placements that cut otherwise"));
  });
}

// A plan that places an argument's gradient hands out an alias of a tensor that is still a sum: code that resolves or
// writes one of the two must not change what the other means.
TEST(MoveArgument, AnAliasOfAPartialKeepsItsMeaning) {
  const at::Tensor full = make_tensor({4, 3}, 1);
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const ArgumentPlan plan{.gradient = Placements{replicate()}};
    {
      const at::Tensor x = shard_of(full, mesh, {partial()}), same = move_arguments({x}, mesh, {plan}, "x")[0];
      EXPECT_EQ(difference(full_tensor(same.exp()), full.exp(), 1e-12), "");
      EXPECT_EQ(difference(full_tensor(x.exp()), full.exp(), 1e-12), "");
      EXPECT_EQ(difference(full_tensor(same), full, 1e-12), "");
    }
    const at::Tensor x = shard_of(full, mesh, {partial()}), same = move_arguments({x}, mesh, {plan}, "x")[0];
    const at::Tensor sum = x.relu();  // resolves x
    EXPECT_EQ(difference(full_tensor(sum), full.relu(), 1e-12), "");
    EXPECT_EQ(difference(full_tensor(same * 2), full * 2, 1e-12), "");

    at::Tensor written = shard_of(full, mesh, {partial()});
    const at::Tensor alias = move_arguments({written}, mesh, {plan}, "x")[0];
    EXPECT_THAT(message_of([&] { written.add_(1); }),
                HasSubstr("a Partial ShardTensor that shares memory with another"));
    EXPECT_EQ(difference(full_tensor(alias), full, 1e-12), "");
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_distribute_parameters
