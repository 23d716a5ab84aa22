// SPDX-License-Identifier: Apache-2.0
// The communicator of devices by NCCL, on a fake NCCL over simulated devices.
#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>

#include "moonhalo/engine/comm/device/device_communicators.h"
#include "moonhalo/engine/comm/device/nccl_api.h"
#include "tests/support/fake_device.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/fake_streams.h"
#include "tests/support/verbs.h"

namespace moonhalo::test_nccl_communicator {
namespace {

using testing::verb_cases;
namespace fake = testing::fake;

class NcclCommunicator : public ::testing::TestWithParam<std::tuple<size_t, int, bool>> {};

TEST_P(NcclCommunicator, PassesTheCase) {
  const auto [index, ranks, ordered] = GetParam();
  fake::on_nccl_ranks(ranks, [index = index, ordered = ordered](Communicator& group) {
    EXPECT_STREQ(group.backend(), "nccl");
    set_ordered_reductions(ordered);
    verb_cases()[index].check(group);
  });
}

INSTANTIATE_TEST_SUITE_P(Cases, NcclCommunicator,
                         ::testing::Combine(::testing::Range(size_t{0}, verb_cases().size()),
                                            ::testing::Values(1, 2, 3, 4), ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(verb_cases()[std::get<0>(info.param)].name) + "_on_" +
                                  std::to_string(std::get<1>(info.param)) + (std::get<2>(info.param) ? "_ordered" : "");
                         });

// Sends and receives of one exchange are one group, and the host waits for none of them.
TEST(NcclExchange, S16_AnExchangeIsOneGroupAndTheHostDoesNotWait) {
  std::atomic<int64_t> waits{0}, groups{0};
  fake::on_nccl_ranks(3, [&](Communicator& group) {
    const c10::Device device = *device_of(group);
    std::vector<Message> sends, receives;
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == group.rank()) continue;
      sends.push_back({peer, at::full({4}, 1.0 + group.rank(), device)});
      receives.push_back({peer, at::zeros({4}, device)});
    }
    group.exchange(sends, receives);
    for (const Message& message : receives) message.data.zero_();
    fake::finish_device(device.index());
    group.barrier();
    const fake::Counts before = fake::counts();
    const int groups_before = fake::nccl_counts().groups;
    group.barrier();

    group.exchange(sends, receives);

    group.barrier();
    if (group.rank() == 0) {
      waits = fake::counts().host_waits - before.host_waits;
      groups = fake::nccl_counts().groups - groups_before;
    }
    group.barrier();
    for (const Message& message : receives)
      EXPECT_TRUE(at::equal(message.data.cpu(), at::full({4}, 1.0 + message.peer)));
  });
  EXPECT_EQ(waits, 0);
  EXPECT_EQ(groups, 3);
}

TEST(NcclExchange, OneEndOfAMessageMayLieOnTheHostAndSomeRanksBeSilent) {
  fake::on_nccl_ranks(3, [](Communicator& group) {
    at::Tensor got = at::zeros({4}, group.rank() == 0 ? at::Device(at::kCPU) : *device_of(group));
    std::vector<Message> sends, receives;
    if (group.rank() < 2) {
      sends.push_back({1 - group.rank(), at::full({4}, 1.0 + group.rank(), *device_of(group))});
      receives.push_back({1 - group.rank(), got});
    }

    group.exchange(sends, receives);

    if (group.rank() < 2) {
      EXPECT_TRUE(at::equal(got.cpu(), at::full({4}, 2.0 - group.rank())));
    }
  });
}

TEST(NcclExchange, BuffersMayBeDroppedAndStreamsChangeWhileMessagesTravel) {
  fake::on_nccl_ranks(2, [](Communicator& group) {
    const c10::Device device = *device_of(group);
    const int other = 1 - group.rank();
    at::Tensor got = at::zeros({3000}, device);
    WorkPtr work = group.exchange_async({{other, at::full({3000}, 5.0 + group.rank(), device)}}, {{other, got}});
    for (int i = 0; i < 3; ++i) at::full({3000}, -1.0, device);  // may be given the memory of what is sent
    {
      const c10::StreamGuard beside(fake::stream_of_pool(device.index()));
      work->wait();
      got = got + 1;
      EXPECT_TRUE(at::equal(got.cpu(), at::full({3000}, 6.0 + other)));
    }
  });
}

// Sums of float and half take another order by NCCL, and the order of ranks where that is asked for.
TEST(NcclReductions, OrderedOnesHaveTheBitsOfRankThreads) {
  std::mutex mutex;
  std::map<bool, int> different;
  fake::on_nccl_ranks(4, [&](Communicator& group) {
    for (const bool ordered : {false, true}) {
      set_ordered_reductions(ordered);
      for (const at::ScalarType dtype : {at::kFloat, at::kHalf}) {
        const at::Tensor mine = (at::arange(3000, at::kDouble) * 0.37 + group.rank() * 1.3).sin().to(dtype);
        at::Tensor here = mine.clone(), there = mine.to(*device_of(group));

        group.all_reduce(here);
        group.all_reduce(there);

        const std::lock_guard lock(mutex);
        different[ordered] += at::equal(there.cpu(), here) ? 0 : 1;
      }
    }
  });
  EXPECT_EQ(different[false], 8) << "the double adds as the threads do, so it shows nothing";
  EXPECT_EQ(different[true], 0);
}

TEST(NcclCommunicators, AreClosedWhenTheirRanksEnd) {
  fake::plant({});
  fake::on_nccl_ranks(3, [](Communicator& group) {
    const CommunicatorPtr part = group.split(group.rank() % 2, 0);
    at::Tensor one = at::ones({3}, *device_of(group));
    group.all_reduce(one);
    part->all_reduce(one);
  });
  EXPECT_EQ(fake::nccl_counts().inits, 5);  // none for a group of one rank
  EXPECT_EQ(fake::nccl_counts().destroys, 5);
  EXPECT_EQ(fake::nccl_counts().aborts, 0);
}

// The machine's own library, where it has one: it answers without a GPU.
TEST(NcclTable, A1_ALibraryAnswersOrItsAbsenceIsOneLine) {
  set_nccl_api(nullptr);

  const NcclFound& found = find_nccl();

  EXPECT_EQ(found.text.find('\n'), std::string::npos) << found.text;
  if (found.api == nullptr) {
    EXPECT_FALSE(found.text.empty());
    return;
  }
  NcclApi::UniqueId one{}, other{};
  EXPECT_EQ(found.api->get_unique_id(&one), NcclApi::kSuccess);
  EXPECT_EQ(found.api->get_unique_id(&other), NcclApi::kSuccess);
  EXPECT_NE(std::string(one.bytes, sizeof(one.bytes)), std::string(other.bytes, sizeof(other.bytes)));
  EXPECT_STREQ(found.api->get_error_string(NcclApi::kSuccess), "no error");
  EXPECT_EQ(found.api->group_start(), NcclApi::kSuccess);
  EXPECT_EQ(found.api->group_end(), NcclApi::kSuccess);
}

}  // namespace
}  // namespace moonhalo::test_nccl_communicator
