// SPDX-License-Identifier: Apache-2.0
// Meshes of devices, on simulated ones.
#include "moonhalo/engine/sharding/mesh_device.h"

#include <ATen/ATen.h>
#include <c10/core/AutogradState.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/comm/device/rank_device.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/fake_device.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"

namespace moonhalo::test_mesh_device {
namespace {

using ::testing::AllOf;
using testing::difference;
using ::testing::HasSubstr;
using testing::make_tensor;
using testing::message_of;
using testing::on_ranks;
namespace fake = testing::fake;

class MeshDevice : public ::testing::Test {
 protected:
  void SetUp() override { fake::install(); }
};

TEST_F(MeshDevice, EachRankHasADeviceOfItsOwn) {
  on_ranks(3, [](Communicator& world) {
    const MeshPtr mesh = init_device_mesh(world, "fake", {3}, {"rows"});

    EXPECT_EQ(device_of(*mesh), fake::device(world.rank()));
    EXPECT_EQ(at::empty({2}, at::Device("fake")).device(), fake::device(world.rank()));
    // Slices, and meshes of one rank, are there too.
    EXPECT_EQ(device_of(*mesh->slice({"rows"})), fake::device(world.rank()));
    EXPECT_EQ(device_of(*init_device_mesh(*make_self_communicator(), "fake", {1})), fake::device(world.rank()));
    EXPECT_EQ(device_of(*init_device_mesh(world, "cpu", {3})), c10::Device(at::kCPU));
  });
}

TEST_F(MeshDevice, TooFewDevicesAreAnErrorOnEveryRank) {
  std::atomic<int> refused{0};
  on_ranks(9, [&](Communicator& world) {
    const std::string text = message_of([&] { init_device_mesh(world, "fake", {9}); });
    EXPECT_THAT(text, AllOf(HasSubstr("9 ranks for 8 devices"), HasSubstr("\n  have  "), HasSubstr("\n  fix   ")));
    refused += !text.empty();
    EXPECT_THAT(message_of([&] { init_device_mesh(world, "fake:8", {9}); }),
                AllOf(HasSubstr("there are 8 FAKE devices"), HasSubstr("\n  have  "), HasSubstr("fake:0 to fake:7")));
    world.barrier();
  });
  EXPECT_EQ(refused, 9);
}

// A reduction over all ranks inside the backward pass.
double gradient_of_a_mean(const MeshPtr& mesh) {
  const std::vector<int64_t> sizes = {4, 1, 3};
  const at::Tensor block = make_tensor({sizes[mesh->rank()], 5}, 7).to(device_of(*mesh));
  const at::Tensor x = from_local(block, mesh, {shard(0)}).requires_grad_(true);
  const at::Tensor y = x.softmax(0);
  (y * y).sum().backward();
  return to_local(x.grad()).abs().sum().item<double>();
}

TEST_F(MeshDevice, RanksMayShareADeviceThatIsNamed) {
  on_ranks(3, [](Communicator& world) {
    const MeshPtr own = init_device_mesh(world, "fake", {3}), shared = init_device_mesh(world, "fake:2", {3});

    EXPECT_EQ(device_of(*shared), fake::device(2));
    EXPECT_EQ(gradient_of_a_mean(own), gradient_of_a_mean(shared));
  });
}

TEST_F(MeshDevice, CollectivesOfABackwardPassStayOnTheRanksThread) {
  on_ranks(3, [](Communicator& world) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(true);
    const MeshPtr mesh = init_device_mesh(world, "fake:0", {3});

    EXPECT_GT(gradient_of_a_mean(mesh), 0);
    EXPECT_FALSE(c10::AutogradState::get_tls_state().get_multithreading_enabled());
  });
}

// Autograd marks tensors that cross from one stream to another, by their storage.
TEST_F(MeshDevice, D2_ABackwardPassOnAnotherStreamIsRightOrRefused) {
  on_ranks(2, [](Communicator& world) {
    const MeshPtr mesh = init_device_mesh(world, "fake", {2});
    const c10::Stream beside = fake::stream_of_pool(world.rank());
    const at::Tensor block = make_tensor({3, 2}, 1).to(device_of(*mesh));
    const at::Tensor x = from_local(block, mesh, {shard(0)}).requires_grad_(true);
    at::Tensor y;
    {
      const c10::StreamGuard on(beside);
      y = (x * x).exp();
    }
    const std::string refused = message_of([&] { y.sum().backward(); });
    if (refused.empty()) {
      EXPECT_EQ(difference(to_local(x.grad()).cpu(), 2 * block.cpu() * (block.cpu() * block.cpu()).exp(), 1e-12), "");
    } else {
      EXPECT_THAT(refused, AllOf(HasSubstr("on another stream than its forward pass"), HasSubstr("\n  fix   ")));
    }
  });
}

TEST_F(MeshDevice, DistributeMovesTheSourceToTheMesh) {
  const at::Tensor full = make_tensor({7, 3}, 1);
  on_ranks(3, [&](Communicator& world) {
    const MeshPtr mesh = init_device_mesh(world, "fake", {3}), host = init_device_mesh(world, "cpu", {3});
    const auto expect_moved = [&](const at::Tensor& source, const MeshPtr& to) {
      at::Tensor leaf = source.detach().clone().requires_grad_(true);
      const at::Tensor x = distribute_tensor(leaf, to, {shard(0, {4, 0, 3})});
      EXPECT_EQ(to_local(x).device(), device_of(*to));
      EXPECT_EQ(difference(full_tensor(x).detach(), full, 0), "");
      (x * x).sum().backward();
      if (world.rank() == 0) {
        EXPECT_EQ(leaf.grad().device(), source.device());
        EXPECT_EQ(difference(leaf.grad(), 2 * full, 1e-12), "");
      }
    };

    expect_moved(full, mesh);
    expect_moved(full.to(fake::device(world.rank())), mesh);
    expect_moved(full.to(fake::device(7)), mesh);
    expect_moved(full.to(fake::device(world.rank())), host);
  });
}

TEST_F(MeshDevice, BlocksOnAnotherDeviceAreRefusedOnEveryRank) {
  on_ranks(3, [](Communicator& world) {
    const MeshPtr mesh = init_device_mesh(world, "fake", {3}), host = init_device_mesh(world, "cpu", {3});
    const at::Tensor here = at::ones({2, 3}), there = here.to(device_of(*mesh));

    const std::string one = message_of([&] { from_local(world.rank() == 1 ? here : there, mesh, {shard(0)}); });
    const std::string other = message_of([&] { from_local(there, host, {shard(0)}); });

    EXPECT_THAT(one, AllOf(HasSubstr("the block of rank 1 is not on the mesh's device"), HasSubstr("\n  fix   ")));
    EXPECT_THAT(other, HasSubstr("the block of rank 0 is not on the mesh's device"));
    EXPECT_THAT(message_of([&] {
                  from_local(here, replicated(mesh, {2, 3}));
                }),
                HasSubstr("is not on the mesh's device\n  have  a block on cpu"));
    world.barrier();
  });
}

TEST_F(MeshDevice, AShardTensorStaysOnTheDeviceOfItsMesh) {
  on_ranks(2, [](Communicator& world) {
    const MeshPtr mesh = init_device_mesh(world, "fake", {2}), host = init_device_mesh(world, "cpu", {2});
    const at::Tensor x = from_local(at::ones({2, 3}, device_of(*mesh)), mesh, {shard(0)});
    const at::Tensor y = from_local(at::ones({2, 3}), host, {shard(0)});

    EXPECT_EQ(to_local(x.to(at::Device("fake"), at::kDouble)).device(), device_of(*mesh));
    EXPECT_THAT(message_of([&] { x.cpu(); }), AllOf(HasSubstr("\n  have  "), HasSubstr("full_tensor")));
    EXPECT_THAT(message_of([&] { redistribute(x, host, {replicate()}); }), HasSubstr("different devices"));
    EXPECT_THAT(message_of([&] { y.to(at::Device("fake")); }), HasSubstr("stay on the device of their mesh"));
    world.barrier();
  });
}

// On the first rank both are one device; the error is the same.
TEST_F(MeshDevice, MeshesOfOneDeviceAndOfEachRanksOwnDiffer) {
  on_ranks(2, [](Communicator& world) {
    const MeshPtr own = init_device_mesh(world, "fake", {2}), shared = init_device_mesh(world, "fake:0", {2});
    const at::Tensor x = from_local(at::ones({2, 3}, device_of(*own)), own, {shard(0)});
    const at::Tensor y = from_local(at::ones({2, 3}, device_of(*shared)), shared, {shard(0)});

    EXPECT_THAT(message_of([&] { redistribute(x, shared, {replicate()}); }), HasSubstr("different devices"));
    EXPECT_THAT(message_of([&] { y.to(fake::device(world.rank() + 1)); }), HasSubstr("stay on the device"));
    EXPECT_EQ(to_local(y.to(fake::device(0), at::kDouble)).device(), fake::device(0));
    EXPECT_EQ(to_local(x.to(device_of(*own), at::kDouble)).device(), device_of(*own));
    world.barrier();
  });
}

// The first rank is there already and would go on alone.
TEST_F(MeshDevice, ADeviceOfOneRankIsRefusedOnEveryRank) {
  on_ranks(3, [](Communicator& world) {
    const MeshPtr own = init_device_mesh(world, "fake", {3}), host = init_device_mesh(world, "cpu", {3});
    const at::Tensor x = from_local(at::ones({2, 3}, device_of(*own)), own, {shard(0)});
    const at::Tensor y = from_local(at::ones({2, 3}), host, {shard(0)});

    EXPECT_THAT(message_of([&] { check_all_stay(*spec(x), fake::device(0)); }),
                AllOf(HasSubstr("stay on the device of their mesh"),
                      HasSubstr("expected on fake:0, where the blocks of rank 1 are not"), HasSubstr("\n  fix   ")));
    EXPECT_THAT(message_of([&] { check_all_stay(*spec(y), fake::device(0)); }),
                HasSubstr("on cpu, expected on fake:0"));
    check_all_stay(*spec(x), device_of(*own));
    check_all_stay(*spec(x), c10::Device("fake"));
    check_all_stay(*spec(y), c10::Device("cpu:0"));
    world.barrier();
  });
}

TEST_F(MeshDevice, SmallerGroupsKeepTheDevicesOfTheirRanks) {
  on_ranks(4, [](Communicator& world) {
    init_device_mesh(world, "fake:5", {4});  // shared, so no rank's own
    const MeshPtr whole = init_device_mesh(world, "fake", {4});
    const CommunicatorPtr pair = world.split(world.rank() / 2, -world.rank());

    EXPECT_EQ(device_of(*init_device_mesh(*pair, "fake", {2})), device_of(*whole));
    EXPECT_EQ(device_of(*whole), fake::device(world.rank()));
  });
}

// Each rank sees devices of its own, under the numbers that others give to theirs.
thread_local int seen_by = 0;

TEST_F(MeshDevice, RanksThatSeeOtherDevicesAreNotCountedTogether) {
  set_device_address([](c10::Device device) { return std::to_string(seen_by) + "." + std::to_string(device.index()); });
  on_ranks(9, [](Communicator& world) {
    seen_by = world.rank();
    const MeshPtr mesh = init_device_mesh(world, "fake", {9});
    EXPECT_EQ(device_of(*mesh), fake::device(0));
    EXPECT_NE(place_of_device(device_of(*mesh)).find(std::to_string(seen_by) + ".0"), std::string::npos);
  });
  set_device_address(nullptr);
}

TEST_F(MeshDevice, TheOneCpuMayBeNumbered) {
  on_ranks(2, [](Communicator& world) {
    const MeshPtr numbered = init_device_mesh(world, "cpu:0", {2}), plain = init_device_mesh(world, "cpu", {2});
    const at::Tensor x = from_local(at::ones({2, 3}), numbered, {shard(0)});

    EXPECT_EQ(difference(full_tensor(redistribute(x, plain, {replicate()})), at::ones({4, 3}), 0), "");
  });
}

}  // namespace
}  // namespace moonhalo::test_mesh_device
