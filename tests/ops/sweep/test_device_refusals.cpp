// SPDX-License-Identifier: Apache-2.0
// Operators that need kernels of a device say so where there are none, on every rank and before anything moves; tests
// that the table of devices leaves out (support/device_table.txt) are there.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "moonhalo/ops/neighborhood/block.h"
#include "moonhalo/ops/neighborhood/operator.h"
#include "tests/support/fake_device.h"
#include "tests/support/oracle.h"
#include "tests/support/placements.h"
#include "tests/support/ranks.h"
#include "tests/support/test_device.h"

namespace moonhalo::test_device_refusals {
namespace {

using testing::make_tensor;
using testing::message_of;
using testing::shard_of;

at::Tensor rows(const MeshPtr& mesh, at::IntArrayRef shape, int64_t dim = 0) {
  return shard_of(make_tensor(shape, 1), mesh, {shard(dim)});
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
}  // namespace moonhalo::test_device_refusals
