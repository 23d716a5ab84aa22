// SPDX-License-Identifier: Apache-2.0
// Slices of meshes of three dims, and what is refused.
#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/exchange/redistribution.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_mesh {
namespace {

using ::testing::HasSubstr;

TEST(Mesh, SlicesOfDimsThatAreNotNeighbours) {
  on_mesh({2, 2, 3}, [](const MeshPtr& mesh) {
    const MeshPtr part = mesh->slice({"dim_0", "dim_2"});

    EXPECT_EQ(part->shape(), (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(part->rank(), mesh->coordinate(0) * 3 + mesh->coordinate(2));
    EXPECT_EQ(part->coordinate(0), mesh->coordinate(0));
    EXPECT_EQ(part->coordinate(1), mesh->coordinate(2));
    // Its group holds the ranks that share dim_1's coordinate, and no others.
    at::Tensor sum = at::full({1}, static_cast<double>(mesh->rank()), at::kDouble);
    part->group().all_reduce(sum);
    double expected = 0;
    for (int64_t r = 0; r < mesh->size(); ++r)
      if (mesh->coordinate(r, 1) == mesh->coordinate(1)) expected += static_cast<double>(r);
    EXPECT_EQ(sum.item<double>(), expected);
  });
}

TEST(Mesh, SlicesAreNamedInTheMeshsOrder) {
  on_mesh({2, 2, 3}, [](const MeshPtr& mesh) {
    EXPECT_THAT(message_of([&] {
                  mesh->slice({"dim_2", "dim_0"});
                }),
                HasSubstr("a slice names its dimensions in the mesh's order, each once"));
    EXPECT_THAT(message_of([&] {
                  mesh->slice({"dim_0", "dim_0"});
                }),
                HasSubstr("a slice names its dimensions in the mesh's order, each once"));
    EXPECT_THAT(message_of([&] {
                  mesh->slice({"dim_0", "dim_3"});
                }),
                HasSubstr("no mesh dimension named \"dim_3\"; did you mean 'dim_0'"));
  });
}

TEST(Placement, EqualsTheSameKindDimSizesAndOp) {
  EXPECT_EQ(shard(1, {2, 3}), shard(1, {2, 3}));
  EXPECT_EQ(partial(), partial(ReduceOp::kSum));
  EXPECT_EQ(replicate(), replicate());
  EXPECT_NE(shard(1, {2, 3}), shard(1, {3, 2}));
  EXPECT_NE(shard(1), shard(0));
  EXPECT_NE(partial(ReduceOp::kMax), partial());
  EXPECT_NE(replicate(), partial());
}

TEST(Mesh, OfGpusNeedsOne) {
  if (at::globalContext().hasCUDA()) GTEST_SKIP() << "there is a GPU";
  run_ranks(2, [](Communicator& world) {
    const auto make = [&] { init_device_mesh(world, "cuda", {2}); };
    EXPECT_THAT(make, ::testing::ThrowsMessage<c10::ValueError>(
                          ::testing::HasSubstr("init_device_mesh: no CUDA device can be used here\n  have  device type "
                                               "\"cuda\", mesh shape")));
    EXPECT_EQ(init_device_mesh(world, "cpu", {2})->size(), 2);
  });
  // A fake world is for planning: nothing is computed on the device.
  EXPECT_EQ(init_device_mesh(*make_fake_communicator(0, 4), "cuda", {4})->size(), 4);
}

TEST(Mesh, WhatPartsOfAFakeWorldSendCounts) {
  const CommunicatorPtr world = make_fake_communicator(0, 8);
  const MeshPtr mesh = init_device_mesh(*world, "cpu", {2, 2, 2}, {"a", "b", "c"});
  at::Tensor x = at::ones({4});
  for (const MeshPtr& slice : {mesh, mesh->slice({"b"}), mesh->slice({"b", "c"})}) {
    const int64_t before = world->stats().total().bytes;

    slice->group().all_reduce(x);

    EXPECT_GT(world->stats().total().bytes, before);
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_mesh
