// SPDX-License-Identifier: Apache-2.0
// Operators that need kernels of the CPU say so on devices, on every rank and before anything moves; the table of what
// is refused there (support/device_table.txt) has no row too many and none too few.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "moonhalo/ops/neighborhood/block.h"
#include "moonhalo/ops/neighborhood/operator.h"
#include "moonhalo/ops/points/knn.h"
#include "moonhalo/ops/window/grid_sample.h"
#include "tests/support/fake_device.h"
#include "tests/support/oracle.h"
#include "tests/support/placements.h"
#include "tests/support/ranks.h"
#include "tests/support/test_device.h"

namespace moonhalo {
namespace {

using testing::make_tensor;
using testing::message_of;
using testing::shard_of;

using Call = std::function<void(const MeshPtr&)>;

at::Tensor rows(const MeshPtr& mesh, at::IntArrayRef shape, int64_t dim = 0) {
  return shard_of(make_tensor(shape, 1), mesh, {shard(dim)});
}

const std::map<std::string, Call> kRefused = {
    {"knn",
     [](const MeshPtr& mesh) {
       knn(rows(mesh, {9, 3}), rows(mesh, {7, 3}), 2);
     }},
    {"radius_search",
     [](const MeshPtr& mesh) {
       radius_search(rows(mesh, {9, 3}), rows(mesh, {7, 3}), 0.5, 4);
     }},
    {"neighbor_offsets",
     [](const MeshPtr& mesh) {
       neighbor_offsets(rows(mesh, {9, 3}), rows(mesh, {7, 3}),
                        shard_of(at::zeros({9, 2}, at::kLong), mesh, {shard(0)}));
     }},
    {"grid_sample with max_displacement",
     [](const MeshPtr& mesh) {
       grid_sample(rows(mesh, {1, 2, 9, 5}, 2), rows(mesh, {1, 9, 5, 2}, 1),
                   {.max_displacement = std::vector<double>{3, 3}});
     }},
};

TEST(DeviceRefusals, NameTheOperatorOnEveryRank) {
  testing::fake::install();
  for (const auto& [name, call] : kRefused) {
    SCOPED_TRACE(name);
    testing::on_ranks(3, [&, name = name, call = call](Communicator& world) {
      const MeshPtr mesh = init_device_mesh(world, "fake", {3});
      const std::string text = message_of([&] { call(mesh); });
      EXPECT_THAT(text, ::testing::StartsWith(name + ": "));
      EXPECT_TRUE(testing::is_clear(text)) << text;
      world.barrier();
    });
  }
}

TEST(DeviceRefusals, AreThoseOfTheTable) {
  std::vector<std::string> names;
  for (const auto& [name, call] : kRefused) names.push_back(name);
  EXPECT_EQ(names, testing::rows_of_device_table("refuses"));
}

// Devices of another kind than CUDA have no kernels of it, unless they are registered.
TEST(DeviceRefusals, X04_NeighborhoodAttentionWithoutKernels) {
  testing::fake::install();
  const NeighborhoodDeviceKernels known = register_neighborhood_kernels(c10::kPrivateUse1, {});
  testing::on_ranks(3, [&](Communicator& world) {
    const MeshPtr mesh = init_device_mesh(world, "fake", {3});
    const at::Tensor x = rows(mesh, {1, 9, 2, 4}, 1);
    const std::string text = message_of([&] { neighborhood_attention(x, x, x, {.window = {3}}); });
    EXPECT_THAT(text, ::testing::StartsWith("neighborhood_attention: no kernels for fake"));
    EXPECT_TRUE(testing::is_clear(text)) << text;
    world.barrier();
  });
  register_neighborhood_kernels(c10::kPrivateUse1, known);
}

TEST(DeviceRefusals, TestsThatAreSkippedAreThere) {
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  std::set<std::string> names;
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(s);
    names.insert(std::string(suite.name()) + ".*");
    for (int t = 0; t < suite.total_test_count(); ++t)
      names.insert(std::string(suite.name()) + "." + suite.GetTestInfo(t)->name());
  }
  for (const char* const word : {"skip", "long"}) {
    for (const std::string& row : testing::rows_of_device_table(word)) EXPECT_TRUE(names.contains(row)) << row;
  }
}

}  // namespace
}  // namespace moonhalo
