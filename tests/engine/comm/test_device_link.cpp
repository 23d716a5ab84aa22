// SPDX-License-Identifier: Apache-2.0
// Tells how tensors of devices are sent in a mesh, and the errors of ranks where they cannot.
#include "moonhalo/engine/comm/device/device_link.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "moonhalo/engine/comm/device/nccl_api.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "tests/support/fake_device.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"

namespace moonhalo::test_device_link {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::message_of;
namespace fake = testing::fake;

// Returns what each rank says of the transport of a mesh on `device`, or its error. `required` is by rank.
std::vector<std::string> transports(const std::string& device, const std::vector<std::string>& expected) {
  fake::install();
  std::vector<std::string> texts(expected.size());
  testing::on_ranks(static_cast<int>(expected.size()), [&](Communicator& world) {
    set_device_link(expected[world.rank()]);
    std::string& text = texts[world.rank()];
    const std::string error = message_of([&] {
      const MeshPtr mesh = init_device_mesh(world, device, {world.size()});
      text = describe_transport(mesh->group());
    });
    text += error;
    set_device_link("");
  });
  return texts;
}

TEST(DeviceLink, S16_NcclWhereEveryRankHasADeviceOfItsOwn) {
  const fake::WithNccl here;

  EXPECT_THAT(transports("fake", {"", ""}), Each(HasSubstr("nccl: ")));
  EXPECT_THAT(transports("fake", {"nccl", "nccl"}), Each(HasSubstr("nccl: ")));
  EXPECT_THAT(transports("fake", {"staged", "staged"}), Each(std::string("staged: it was asked for")));
  EXPECT_THAT(transports("cpu", {"", ""}), Each(std::string("threads")));
}

TEST(DeviceLink, A5_RanksThatShareADeviceAreStagedOrRefused) {
  const fake::WithNccl here;

  EXPECT_THAT(transports("fake:1", {"", ""}), Each(std::string("staged: ranks 0 and 1 share a device")));
  EXPECT_THAT(transports("fake:1", {"nccl", "nccl"}),
              Each(::testing::AllOf(HasSubstr("ranks 0 and 1 share a device"), HasSubstr("\n  fix   "))));
}

TEST(DeviceLink, A1_WithoutALibraryItIsStagedOrRefused) {
  fake::install();
  set_nccl_api(nullptr);

  EXPECT_THAT(transports("fake", {"", ""}), Each(HasSubstr("staged: rank 0: ")));
  EXPECT_THAT(transports("fake", {"nccl", "nccl"}),
              Each(::testing::AllOf(HasSubstr("\"nccl\" cannot be used here"), HasSubstr("--backend staged"))));
}

TEST(DeviceLink, RanksThatWantDifferentOnesAreTold) {
  EXPECT_THAT(transports("fake", {"", "staged"}), Each(HasSubstr("ranks 0 and 1 want different ones")));
  EXPECT_THAT(message_of([] { set_device_link("ncll"); }), HasSubstr("unknown name \"ncll\""));
}

TEST(DeviceLink, EnvSaysWhatThereIs) {
  const std::string text = describe_device_links();

  EXPECT_THAT(text, HasSubstr("staged, through memory of the host"));
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

// Meshes of one world share a stream, so that their messages begin in one order on all ranks.
TEST(DeviceLink, MeshesOfOneWorldDoNotBlockEachOther) {
  const fake::WithNccl here;
  testing::on_ranks(4, [](Communicator& world) {
    const MeshPtr rows = init_device_mesh(world, "fake", {2, 2}), all = init_device_mesh(world, "fake", {4});
    for (int i = 0; i < 5; ++i) {
      at::Tensor a = at::ones({3000}, fake::device(world.rank())), b = a.clone(), c = a.clone();
      rows->group(0).all_reduce(a);
      all->group().all_reduce(b);
      rows->group(1).all_reduce(c);
      EXPECT_EQ((a + b + c)[7].item<double>(), 8);
    }
  });
}

}  // namespace
}  // namespace moonhalo::test_device_link
