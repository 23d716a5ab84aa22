// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/dispatch/dispatch.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_shard_tensor {
namespace {

using ::testing::HasSubstr;

TEST(ShardTensor, TextbookPlacementsOnASquare) {  // D01, D02
  on_mesh({2, 2}, [](const MeshPtr& mesh) {
    const at::Tensor full = at::tensor({0, 1, 2, 3}, at::kDouble).view({2, 2});
    const int64_t row = mesh->coordinate(0), column = mesh->coordinate(1);
    EXPECT_EQ(mesh->rank(), 2 * row + column);

    const auto local = [&](const std::vector<Placement>& placements) {
      return to_local(distribute_tensor(mesh->rank() == 0 ? full : at::Tensor(), mesh, placements));
    };

    EXPECT_TRUE(local({replicate(), shard(0)}).equal(full.narrow(0, column, 1)));
    EXPECT_TRUE(local({shard(0), replicate()}).equal(full.narrow(0, row, 1)));
    EXPECT_TRUE(local({shard(0), shard(1)}).equal(full.narrow(0, row, 1).narrow(1, column, 1)));
    const at::Tensor summed = from_local(full, mesh, {partial(), replicate()});
    EXPECT_TRUE(full_tensor(summed).equal(full * 2));
  });
}

// D01: rows {0, 1} and {2, 3}, columns {0, 2} and {1, 3}, by what their members tell each other.
TEST(ShardTensor, D01_RowsAndColumnsOfAMeshAreGroups) {
  on_mesh({2, 2}, [](const MeshPtr& mesh) {
    const auto members = [&](Communicator& group) {
      const at::Tensor mine = at::full({1}, mesh->rank(), at::kLong);
      at::Tensor all = at::empty({group.size()}, at::kLong);
      group.all_gather(mine, std::vector<int64_t>(group.size(), 1), all);
      return std::vector<int64_t>(all.const_data_ptr<int64_t>(), all.const_data_ptr<int64_t>() + all.numel());
    };
    using Ranks = std::vector<int64_t>;

    EXPECT_EQ(members(mesh->group(1)), mesh->rank() < 2 ? (Ranks{0, 1}) : (Ranks{2, 3}));
    EXPECT_EQ(members(mesh->group(0)), mesh->rank() % 2 == 0 ? (Ranks{0, 2}) : (Ranks{1, 3}));
    EXPECT_EQ(members(mesh->group()), (Ranks{0, 1, 2, 3}));
    EXPECT_EQ(mesh->group(0).rank(), mesh->rank() / 2);
    EXPECT_EQ(mesh->group(1).rank(), mesh->rank() % 2);
  });
}

TEST(ShardTensor, FromLocalTakesUnevenBlocks) {  // D03
  on_mesh({4}, [](const MeshPtr& mesh) {
    const std::vector<int64_t> widths = {3, 0, 1, 4};
    const at::Tensor full = make_tensor({2, 8}, 1);
    const int64_t start = mesh->rank() == 0 ? 0 : mesh->rank() == 1 ? 3 : mesh->rank() == 2 ? 3 : 4;

    const at::Tensor x = from_local(full.narrow(1, start, widths[mesh->rank()]), mesh, {shard(1)});

    EXPECT_EQ(x.sizes(), full.sizes());
    EXPECT_TRUE(full_tensor(x).equal(full));
    EXPECT_EQ(sharding_sizes(x), (std::map<int64_t, std::vector<int64_t>>{{0, widths}}));  // S19
  });
}

TEST(ShardTensor, FromLocalOnASquareFindsTheGrid) {
  on_mesh({2, 2}, [](const MeshPtr& mesh) {
    const at::Tensor full = make_tensor({5, 7}, 1);
    const int64_t r = mesh->coordinate(0), c = mesh->coordinate(1);
    const at::Tensor block = full.narrow(0, r * 4, r ? 1 : 4).narrow(1, c * 2, c ? 5 : 2);

    const at::Tensor x = from_local(block, mesh, {shard(0), shard(1)});

    EXPECT_TRUE(full_tensor(x).equal(full));
  });
}

TEST(ShardTensor, BlocksThatFormNoGridAreRefusedOnEveryRank) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const at::Tensor block = make_tensor({2, mesh->rank() == 1 ? 3 : 4}, 1);

    const std::string message = message_of([&] { from_local(block, mesh, {shard(0)}); });

    EXPECT_THAT(message, HasSubstr("from_local: the blocks do not form a grid: rank 1 has 3 along dim 1"));
  });
}

TEST(ShardTensor, DerivedSpecsNeedNoCommunication) {  // S19
  on_mesh({3}, [](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(make_tensor({9, 4}, 1), mesh, {shard(0, {3, 1, 5})});
    mesh->group().reset_stats();

    const at::Tensor y = (x * 2).relu();

    EXPECT_EQ(sharding_sizes(y), sharding_sizes(x));
    EXPECT_EQ(spec(y), spec(x));
    EXPECT_EQ(mesh->group().stats().total().calls, 0);
  });
}

// A handle on the block on one rank only must not make ranks diverge.
TEST(ShardTensor, APartialIsSummedUpOnAllRanksOrOnNone) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const at::Tensor addend = at::full({4}, -1.0 - mesh->rank(), at::kDouble);
    const at::Tensor x = from_local(addend, mesh, {partial()});
    at::Tensor handle;
    if (mesh->rank() == 1) handle = to_local(x);

    EXPECT_TRUE(to_local(x.abs()).equal(at::full({4}, 6.0, at::kDouble)));

    EXPECT_FALSE(spec(x)->has_partial());
    x.add_(10);
    EXPECT_TRUE(to_local(x).equal(at::full({4}, 4.0, at::kDouble)));
    if (mesh->rank() == 1) EXPECT_TRUE(handle.equal(addend));

    // Another ShardTensor of the same block counts: it would not see what is written.
    const at::Tensor y = from_local(addend, mesh, {partial()});
    at::Tensor other = y.detach();
    EXPECT_TRUE(to_local(y.abs()).equal(at::full({4}, 6.0, at::kDouble)));
    EXPECT_TRUE(spec(y)->has_partial());
    EXPECT_THAT(message_of([&] { y.add_(10); }), HasSubstr("shares memory with another"));
    other.reset();
    y.add_(10);
    EXPECT_TRUE(to_local(y).equal(at::full({4}, 4.0, at::kDouble)));
  });
}

TEST(ShardTensor, DistributeFromOneRank) {  // D06
  on_mesh({3}, [](const MeshPtr& mesh) {
    const at::Tensor full = at::arange(8888, at::kLong);  // 2963, 2963 and 2962 of them
    const int64_t rank = mesh->rank();

    const at::Tensor x = distribute_tensor(rank == 0 ? full : at::Tensor(), mesh, {shard(0)});

    EXPECT_TRUE(to_local(x).equal(full.narrow(0, 2963 * rank, rank == 2 ? 2962 : 2963)));
    EXPECT_TRUE(full_tensor(x).equal(full));
  });
}

TEST(ShardTensor, ScatterSendsBlocksAndBringsGradientsBack) {  // S17
  on_mesh({2, 2}, [](const MeshPtr& mesh) {
    const int64_t src = 2;
    const at::Tensor full = make_tensor({5, 7, 2}, 4), weight = make_tensor({5, 7, 2}, 5);
    at::Tensor source;
    if (mesh->rank() == src) source = full.clone().requires_grad_();
    mesh->group().reset_stats();

    const at::Tensor x = scatter_tensor(source, mesh, {shard(0, {1, 4}), shard(1, {5, 2})}, src);
    const int64_t sent = mesh->group().stats().by_kind[CommStats::kExchange].bytes;
    const at::Tensor w = shard_of(weight, mesh, {shard(0, {1, 4}), shard(1, {5, 2})});
    (x * x * w).sum().backward();

    // Only the blocks of the other ranks left the source.
    EXPECT_EQ(sent, mesh->rank() == src ? (5 * 7 * 2 - 4 * 5 * 2) * 8 : 0);
    EXPECT_TRUE(full_tensor(x.detach()).equal(full));
    if (mesh->rank() == src) {
      EXPECT_EQ(difference(source.grad(), 2 * full * weight, 1e-12), "");
    }
  });
}

TEST(ShardTensor, ScatterOfNothingIsRefusedOnEveryRank) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const std::string message = message_of([&] { scatter_tensor({}, mesh, {shard(0)}, 1); });

    EXPECT_THAT(message, HasSubstr("scatter_tensor: rank 1, the source, holds no tensor"));
  });
}

// One rank alone has the tensor, and all refuse it: the others do not wait for its blocks.
TEST(ShardTensor, MoreDimsThanAMessageHoldsAreRefusedOnEveryRank) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const at::Tensor deep = at::ones(std::vector<int64_t>(17, 1)), flat = at::ones({1});
    const bool first = mesh->rank() == 0;

    EXPECT_THAT(message_of([&] { distribute_tensor(first ? deep : at::Tensor(), mesh, {shard(0)}); }),
                HasSubstr("distribute_tensor: more than 16 dims"));
    EXPECT_THAT(message_of([&] { from_local(first ? deep : flat, mesh, {shard(0)}); }),
                HasSubstr("from_local: more than 16 dims\n  have  a block of 17 dims on rank 0"));
  });
}

TEST(ShardTensor, ToLocalAndFullTensorAreDifferentiable) {  // D05, S23
  expect_same_as_plain({3}, {{make_tensor({7, 2}, 1), {shard(0, {1, 5, 1})}}},
                       [](const std::vector<at::Tensor>& t) {
                         const at::Tensor x = is_shard_tensor(t[0]) ? full_tensor(t[0]) : t[0];
                         return std::vector<at::Tensor>{(x * x).sum(0)};
                       },
                       {.double_backward = true});
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(make_tensor({5}, 1), mesh, {shard(0, {2, 3})}).requires_grad_();

    const at::Tensor local = to_local(x);
    (local * local).sum().backward();

    EXPECT_FALSE(is_shard_tensor(local));
    EXPECT_EQ(spec(x.grad()), spec(x));
    EXPECT_EQ(difference(full_tensor(x.grad()), 2 * full_tensor(x.detach()), 1e-15), "");
  });
}

TEST(ShardTensor, GradientsComeBackAsTheLeafIsCut) {  // S14
  on_mesh({3}, [](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(make_tensor({7, 2}, 1), mesh, {shard(0, {1, 5, 1})}).requires_grad_();

    redistribute(x, {shard(1, {2, 0, 0})}).mul(3).sum().backward();

    EXPECT_EQ(spec(x.grad()), spec(x));
    EXPECT_TRUE(full_tensor(x.grad()).equal(at::full({7, 2}, 3, at::kDouble)));
  });
}

TEST(ShardTensor, PlainWeightsGetPlainReducedGradients) {  // S27
  on_mesh({3}, [](const MeshPtr& mesh) {
    const at::Tensor full = make_tensor({7, 2}, 1), w0 = make_tensor({2}, 2);
    const at::Tensor x = shard_of(full, mesh, {shard(0, {1, 5, 1})});
    at::Tensor w = w0.clone().requires_grad_();

    (x * w).tanh().sum().backward();
    (x * w).tanh().sum().backward();

    at::Tensor plain = w0.clone().requires_grad_();
    (2 * (full * plain).tanh().sum()).backward();
    EXPECT_FALSE(is_shard_tensor(w.grad()));
    EXPECT_EQ(difference(w.grad(), plain.grad(), 1e-12), "");
  });
}

TEST(ShardTensor, ReplicatedParametersKeepASumUntilItIsUsed) {  // V11
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(make_tensor({9, 2}, 1), mesh, {shard(0, {3, 6})});
    const at::Tensor w = shard_of(make_tensor({1, 2}, 2), mesh, {replicate()}).requires_grad_();

    (x * w).sum().backward();

    EXPECT_TRUE(spec(w.grad())->has_partial());
    const at::Tensor twice = w.grad() * w.grad();
    EXPECT_FALSE(spec(w.grad())->has_partial());
    EXPECT_EQ(difference(full_tensor(twice), full_tensor(x).sum(0, true).square(), 1e-12), "");
  });
}

TEST(ShardTensor, DataOfAnotherKindIsRefused) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    at::Tensor x = shard_of(make_tensor({4}, 1), mesh, {shard(0)}), plain = at::zeros({4}, at::kDouble);

    EXPECT_THAT(message_of([&] { x.set_data(plain); }),
                HasSubstr("set_data: a ShardTensor cannot take the data of a plain tensor"));
    EXPECT_THAT(message_of([&] {
                  plain.set_data(x);
                  plain.add(1);
                }),
                HasSubstr("set_data: a plain tensor was given the data of a ShardTensor"));
    EXPECT_THAT(message_of([&] { x.data_ptr(); }), HasSubstr("storage"));
  });
}

TEST(ShardTensor, WorksInInferenceMode) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const c10::InferenceMode inference;
    const at::Tensor full = make_tensor({9, 2}, 1);

    const at::Tensor y = shard_of(full, mesh, {shard(0, {3, 6})}).square().sub(1);

    EXPECT_EQ(difference(full_tensor(y), full.square().sub(1), 0), "");
  });
}

TEST(Specs, AreInternedAndChecked) {
  on_mesh({2, 2}, [](const MeshPtr& mesh) {
    EXPECT_EQ(make_spec(mesh, {5, 4}, {shard(0, {3, 2}), replicate()}),
              make_spec(mesh, {5, 4}, {shard(-2), replicate()}));
    EXPECT_NE(make_spec(mesh, {5, 4}, {shard(0), replicate()}), make_spec(mesh, {5, 4}, {replicate(), shard(0)}));
    EXPECT_EQ((*mesh)["dim_1"], (*mesh)["dim_1"]);
    const auto nested = make_spec(mesh, {9}, {shard(0, {6, 3}), shard(0)});
    EXPECT_EQ(nested->block_sizes(0), (std::vector<int64_t>{3, 3, 2, 1}));
    EXPECT_EQ(make_spec(mesh, {9}, nested->placements()), nested);

    EXPECT_THAT(message_of([&] {
                  make_spec(mesh, {9}, {shard(0, {4, 4}), replicate()});
                }),
                HasSubstr("Shard(0, {4, 4}): block sizes add up to 8, the tensor has 9 along dim 0"));
    EXPECT_THAT(message_of([&] {
                  make_spec(mesh, {9}, {shard(0, {4, 4, 1}), replicate()});
                }),
                HasSubstr("3 block sizes for 2 ranks"));
    EXPECT_THAT(message_of([&] { make_spec(mesh, {9}, {shard(1), replicate()}); }), HasSubstr("dim 1 is out of range"));
    EXPECT_THAT(message_of([&] { make_spec(mesh, {9}, {shard(0)}); }),
                HasSubstr("1 placements for mesh(2x2: dim_0, dim_1)"));
    EXPECT_THAT(message_of([&] { mesh->mesh_dim("dim_2"); }), HasSubstr("did you mean"));
    EXPECT_THAT(message_of([&] {
                  init_device_mesh(mesh->group(), "cpu", {3, 2});
                }),
                HasSubstr("has 6 ranks, the world has 4"));
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_shard_tensor
