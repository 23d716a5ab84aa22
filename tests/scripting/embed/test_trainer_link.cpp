// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/embed/trainer_link.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/fake_device.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"

namespace moonhalo::scripting::test_trainer_link {
namespace {

using moonhalo::testing::difference;
using moonhalo::testing::make_tensor;
namespace fake = moonhalo::testing::fake;

// Solvers and trainers may keep their weights on devices of their own.
TEST(TrainerLink, X15_WeightsMayLieOnDevices) {
  fake::install();
  const at::Tensor trained = make_tensor({3, 4}, 1), snapshot = make_tensor({5, 2}, 2);
  moonhalo::testing::on_ranks(2, [&](Communicator& world) {
    const bool trains = world.rank() == 1;
    const CommunicatorPtr part = world.split(trains ? 1 : 0, 0);
    TrainerLink link(world.shared_from_this(), 1);
    const at::Tensor weight = (trains ? trained : at::zeros_like(trained)).to(fake::device(world.rank()));
    if (trains) {
      const auto request = link.next(1);
      ASSERT_TRUE(request.has_value());
      EXPECT_EQ(difference(request->slabs[0], snapshot, 0), "");
      link.reply({weight.t()});
      EXPECT_FALSE(link.next(1).has_value());
      return;
    }
    const MeshPtr mesh = init_device_mesh(*part, "cpu", {1});
    link.request(*part, {from_local(snapshot, mesh, {replicate()})}, {}, {weight.t()});
    EXPECT_TRUE(link.finish(*part, {weight.t()}));
    EXPECT_EQ(difference(weight.cpu(), trained, 0), "");
  });
}

// Solvers that hold the same part send it once; blocks of a grid are put together.
TEST(TrainerLink, X15_SnapshotsOfCopiesAndOfGrids) {
  const at::Tensor full = make_tensor({5, 6}, 1);
  const std::vector<std::vector<Placement>> ways = {{shard(0, {2, 3}), replicate()},
                                                    {replicate(), shard(1, {5, 1})},
                                                    {replicate(), replicate()},
                                                    {shard(1, {2, 4}), shard(0, {4, 1})}};
  for (const std::vector<Placement>& way : ways) {
    moonhalo::testing::on_ranks(5, [&](Communicator& world) {
      const bool trains = world.rank() == 4;
      const CommunicatorPtr part = world.split(trains ? 1 : 0, world.rank());
      TrainerLink link(world.shared_from_this(), 1);
      if (trains) {
        const auto request = link.next(1);
        ASSERT_TRUE(request.has_value());
        EXPECT_EQ(difference(request->slabs[0], full, 0), "");
        link.reply({});
        EXPECT_FALSE(link.next(1).has_value());
        return;
      }
      const MeshPtr mesh = init_device_mesh(*part, "cpu", {2, 2});
      link.request(*part, {moonhalo::testing::shard_of(full, mesh, way)}, {}, {});
      link.finish(*part, {});
    });
  }
}

}  // namespace
}  // namespace moonhalo::scripting::test_trainer_link
