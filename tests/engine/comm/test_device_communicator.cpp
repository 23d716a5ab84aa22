// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/device/device_communicators.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>

#include "moonhalo/engine/comm/pollable.h"
#include "tests/support/fake_device.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"
#include "tests/support/verbs.h"

namespace moonhalo::test_device_communicator {
namespace {

using testing::message_of;
using testing::on_ranks;
using testing::verb_cases;
namespace fake = testing::fake;

// every verb on tensors of a device, 1 to 4 ranks.

class StagedCommunicator : public ::testing::TestWithParam<std::tuple<size_t, int>> {};

TEST_P(StagedCommunicator, PassesTheCase) {
  fake::install();
  const auto [index, ranks] = GetParam();
  on_ranks(ranks, [index = index](Communicator& world) {
    const auto group = make_device_communicator(world.shared_from_this(), fake::device(world.rank()));
    fake::exchange_device(world.rank());
    verb_cases()[index].check(*group);
  });
}

INSTANTIATE_TEST_SUITE_P(Cases, StagedCommunicator,
                         ::testing::Combine(::testing::Range(size_t{0}, verb_cases().size()),
                                            ::testing::Values(1, 2, 3, 4)),
                         [](const auto& info) {
                           return std::string(verb_cases()[std::get<0>(info.param)].name) + "_on_" +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST(DeviceCommunicator, CarriesTensorsOfTheHostAndOfItsOwnDeviceAlone) {
  fake::install();
  run_ranks(2, [](Communicator& world) {
    const auto group = make_device_communicator(world.shared_from_this(), fake::device(world.rank()));
    at::Tensor here = at::ones({3}), there = here.to(fake::device(world.rank())), elsewhere = here.to(fake::device(5));

    group->all_reduce(here);
    group->all_reduce(there);

    EXPECT_TRUE(at::equal(here, at::full({3}, 2.0)));
    EXPECT_TRUE(at::equal(there.cpu(), here));
    EXPECT_STREQ(group->backend(), "staged");
    EXPECT_EQ(device_of(*group), fake::device(world.rank()));
    const std::string refused = message_of([&] { group->all_reduce(elsewhere); });
    EXPECT_THAT(refused, ::testing::HasSubstr("fake:5"));
    EXPECT_THAT(refused, ::testing::HasSubstr("\n  fix   "));
  });
}

// A rank may have its part of a message on the host.
TEST(DeviceCommunicator, OneEndOfAMessageMayLieOnTheHost) {
  fake::install();
  run_ranks(2, [](Communicator& world) {
    const c10::Device device = fake::device(world.rank());
    const auto group = make_device_communicator(world.shared_from_this(), device);
    const int other = 1 - world.rank();
    at::Tensor got = at::zeros({4}, at::device(world.rank() == 0 ? at::Device(at::kCPU) : device));

    group->exchange({{other, at::full({4}, 1.0 + world.rank(), at::device(device))}}, {{other, got}});

    EXPECT_TRUE(at::equal(got.cpu(), at::full({4}, 1.0 + other)));
  });
}

// However many messages, the host waits once for what is to be sent, and not at all for what arrives.
TEST(DeviceCommunicator, AnExchangeWaitsOnceForTheDevice) {
  fake::install();
  const c10::Device device = fake::device(0);
  run_ranks(1, [&](Communicator& world) {
    const auto group = make_device_communicator(world.shared_from_this(), device);
    EXPECT_EQ(group->size(), 1);
  });
  run_ranks(2, [&](Communicator& world) {
    const auto group = make_device_communicator(world.shared_from_this(), fake::device(world.rank()));
    const int other = 1 - world.rank();
    std::vector<Message> sends, receives;
    for (int i = 0; i < 5; ++i) {
      sends.push_back({other, at::full({4}, i, at::device(fake::device(world.rank())))});
      receives.push_back({other, at::empty_like(sends.back().data)});
    }
    const int64_t before = fake::counts().host_waits;

    group->exchange(sends, receives);

    EXPECT_EQ(fake::counts().host_waits - before, 1);
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(at::equal(receives[i].data.cpu(), at::full({4}, double(i))));
  });
}

// As threads are without a device: the error of the rank that failed is the one to read.
TEST(DeviceCommunicator, AnExchangeThatIsDroppedInABrokenGroupIsSilent) {
  fake::install();
  ::testing::internal::CaptureStderr();
  const std::string text = message_of([&] {
    run_ranks(2, [](Communicator& world) {
      const c10::Device device = fake::device(world.rank());
      const auto group = make_device_communicator(world.shared_from_this(), device);
      group->barrier();
      if (world.rank() == 1) throw std::runtime_error("the pressure is negative");
      group->exchange_async({}, {{1, at::empty({4}, at::device(device))}});
    });
  });

  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_THAT(text, ::testing::HasSubstr("the pressure is negative"));
}

TEST(DeviceCommunicator, AnExchangeTellsWhetherItHasArrived) {
  fake::install();
  std::latch looked(1);
  run_ranks(2, [&](Communicator& world) {
    const c10::Device device = fake::device(world.rank());
    const auto group = make_device_communicator(world.shared_from_this(), device);
    const int other = 1 - world.rank();
    at::Tensor got = at::zeros({4}, device);
    if (world.rank() == 1) looked.wait();

    const WorkPtr work = group->exchange_async({{other, at::ones({4}, device)}}, {{other, got}});

    if (world.rank() == 0) {
      EXPECT_FALSE(is_ready(*work));
      looked.count_down();
    }
    work->wait();
    EXPECT_TRUE(is_ready(*work));
    EXPECT_TRUE(at::equal(got.cpu(), at::ones({4})));
  });
}

TEST(DeviceCommunicator, X16_ARankThatFailsEndsThoseThatWaitWithTheirDevices) {
  fake::install();
  std::atomic<int> told{0};
  const std::string first = message_of([&] {
    on_ranks(3, [&](Communicator& world) {
      const c10::Device device = fake::device(world.rank());
      const auto group = make_device_communicator(world.shared_from_this(), device);
      if (world.rank() == 2) TORCH_CHECK_VALUE(false, "the valve is stuck");
      at::Tensor data = at::ones({20000}, device);
      const std::string text = message_of([&] { group->all_reduce(data); });
      told += text.find("the valve is stuck") != std::string::npos;
      EXPECT_TRUE(at::equal(data.cpu(), at::ones({20000})));
    });
  });
  EXPECT_EQ(first, "rank 2: the valve is stuck");
  EXPECT_EQ(told, 2);
}

}  // namespace
}  // namespace moonhalo::test_device_communicator
