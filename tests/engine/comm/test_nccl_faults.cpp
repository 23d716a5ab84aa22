// SPDX-License-Identifier: Apache-2.0
// X16 on devices: whatever goes wrong on one of them, every rank gets an error and none waits for ever. Devices are
// simulated, and NCCL is a double with a planted fault.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <latch>
#include <thread>
#include <vector>

#include "moonhalo/engine/comm/device/device_communicators.h"
#include "moonhalo/engine/comm/device/device_watch.h"
#include "moonhalo/engine/comm/diagnostics/check_calls.h"
#include "moonhalo/engine/comm/time_limit.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "tests/support/fake_device.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/fake_streams.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"
#include "tests/support/socket_ranks.h"

namespace moonhalo::test_nccl_faults {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::message_of;
namespace fake = testing::fake;

// Sums over all ranks until something throws. The host waits for the device each time, as for a loss.
void train(Communicator& group, int steps) {
  for (int step = 0; step < steps; ++step) {
    at::Tensor loss = at::ones({2000}, *device_of(group));
    group.all_reduce(loss);
    const double value = loss[3].item<double>();
    check_arrived(group);
    EXPECT_EQ(value, group.size());
  }
}

class NcclFaults : public ::testing::Test {
 protected:
  void TearDown() override {
    fake::plant({});
    set_hung_device_hook(nullptr);
  }
  // The errors of all ranks when `fault` is planted.
  static std::vector<std::string> errors(int ranks, const fake::NcclFault& fault,
                                         const std::function<void(Communicator&)>& body) {
    fake::plant(fault);
    std::vector<std::string> texts(ranks);
    fake::on_nccl_ranks(ranks, [&](Communicator& group) { texts[group.rank()] = message_of([&] { body(group); }); });
    return texts;
  }
};

// Only the rank whose device hangs has a limit that it can reach: the others are notified.
TEST_F(NcclFaults, X16_AnOperationThatNeverEndsEndsAllRanks) {
  const auto texts = errors(3, {.rank = 1, .group_at = 4, .never_ends = true}, [](Communicator& group) {
    train(group, 4);
    if (group.rank() == 1) group.set_timeout(std::chrono::milliseconds(300));
    train(group, 6);
  });

  EXPECT_THAT(texts, Each(HasSubstr("all_reduce timed out after 0.3 s on the device of rank 1")));
  EXPECT_THAT(texts, Each(HasSubstr("all_reduce of Float, 2000 elements, op sum (call 5 of this group)")));
  EXPECT_EQ(fake::nccl_counts().aborts, 3);
}

TEST_F(NcclFaults, X16_AnErrorThatNcclFindsLaterEndsAllRanks) {
  const auto texts = errors(3, {.rank = 2, .group_at = 3, .async_error = true}, [](Communicator& g) { train(g, 10); });

  EXPECT_THAT(texts, Each(HasSubstr("rank 2: NCCL reports: remote process exited")));
}

TEST_F(NcclFaults, X16_ACallThatNcclRefusesEndsAllRanks) {
  const auto texts = errors(3, {.rank = 0, .group_at = 2, .refused = true}, [](Communicator& g) { train(g, 10); });

  EXPECT_THAT(texts, Each(HasSubstr("NCCL reports: unhandled system error")));
}

// Returns "" if all ranks say the same and all of `words`, else what one says.
std::string unlike(const std::vector<std::string>& texts, const std::vector<std::string>& words) {
  for (const std::string& text : texts) {
    if (text != texts[0]) return text + "\n  unlike " + texts[0];
    for (const std::string& word : words) {
      if (text.find(word) == std::string::npos) return text + "\n  without " + word;
    }
  }
  return "";
}

TEST_F(NcclFaults, X16_OneRankThatCannotJoinIsAnErrorOnAllRanksAlike) {
  const std::string what = "nccl: the communicator of 3 ranks could not be made", fix = "\n  fix   ";
  const auto failing = errors(3, {.rank = 1, .init_fails = true}, [](Communicator& group) { train(group, 1); });
  EXPECT_EQ(unlike(failing, {what, "rank 1: NCCL reports: unhandled system error", fix}), "");

  const auto hanging = [&](std::chrono::milliseconds limit) {
    const auto texts = errors(3, {.rank = 1, .init_hangs = true}, [limit](Communicator& group) {
      host_communicator(group)->set_timeout(limit);
      train(group, 1);
    });
    return unlike(texts, {what, "not made within " + seconds_text(limit), fix});
  };
  EXPECT_EQ(testing::with_longer_limits(std::chrono::seconds(1), hanging), "");
}

TEST_F(NcclFaults, A5_TwoRanksOnOneDeviceAreAnErrorOnBoth) {
  const fake::WithNccl here;
  std::vector<std::string> texts(2);
  testing::on_ranks(2, [&](Communicator& world) {
    const auto group = make_device_communicator(world.shared_from_this(), fake::device(0), DeviceLink::kNccl);
    at::Tensor one = at::ones({3}, fake::device(0));
    texts[world.rank()] = message_of([&] { group->all_reduce(one); });
  });
  EXPECT_THAT(texts, Each(HasSubstr("could not be made")));
}

// The device's memory may be in use for ever, but ranks get their errors, and the program is notified.
TEST_F(NcclFaults, X16_AnAbortThatHangsHoldsNoRankUp) {
  std::latch told(1);
  std::string why;
  set_hung_device_hook([&](const std::string& text) {
    why = text;
    told.count_down();
  });
  const fake::NcclFault fault{.rank = 1, .group_at = 1, .async_error = true, .abort_hangs = true};

  const auto texts = errors(3, fault, [&](Communicator& group) {
    at::Tensor data = at::ones({2000}, *device_of(group));
    group.all_reduce(data);
    group.all_reduce(data);
    const std::string error = message_of([&] {
      for (;;) group.all_reduce(data);
    });
    told.wait();
    fake::plant({});
    TORCH_CHECK_VALUE(false, error);
  });

  EXPECT_THAT(texts, Each(HasSubstr("rank 1: NCCL reports: remote process exited")));
  EXPECT_THAT(why, HasSubstr("could not be aborted"));
}

TEST_F(NcclFaults, B4_ARankThatFailsAloneEndsThoseWhoseDevicesWaitForIt) {
  std::vector<std::string> texts(3);
  const std::string first = message_of([&] {
    fake::on_nccl_ranks(3, [&](Communicator& group) {
      train(group, 2);
      if (group.rank() == 2) TORCH_CHECK_VALUE(false, "the valve is stuck");
      texts[group.rank()] = message_of([&] { train(group, 1); });
    });
  });

  EXPECT_EQ(first, "rank 2: the valve is stuck");
  EXPECT_THAT(texts[0], HasSubstr("the valve is stuck"));
  EXPECT_THAT(texts[1], HasSubstr("the valve is stuck"));
}

TEST_F(NcclFaults, X16_ARankWhoseDeviceIsFullEndsAllRanks) {
  std::vector<std::string> texts(8);
  const auto body = [&](Communicator& group) {
    train(group, 2);
    const int rank = group.rank();
    if (rank == 2) at::empty({int64_t{1} << 50}, *device_of(group));
    texts[rank] = message_of([&] { train(group, 1); });
  };

  EXPECT_THROW(fake::on_nccl_ranks(8, body), c10::OutOfMemoryError);

  for (const int rank : {0, 1, 3, 4, 5, 6, 7})
    EXPECT_THAT(texts[rank], HasSubstr("fake device: out of memory")) << "rank " << rank;
}

// The allocator does not depend on cuts.
TEST_F(NcclFaults, X16_ADeviceThatIsFullSaysHowItsTensorsAreCut) {
  const fake::WithNccl here;
  const std::string text = message_of([] {
    testing::on_ranks(3, [](Communicator& world) {
      const MeshPtr mesh = init_device_mesh(world, "fake", {3});
      const at::Tensor x = testing::shard_of(testing::make_tensor({1, 6}, 1), mesh, {shard(1, {1, 4, 1})});
      at::empty_like(x.expand({int64_t{1} << 44, 6}), at::MemoryFormat::Contiguous);
    });
  });

  EXPECT_THAT(text, AllOf(HasSubstr("fake device: out of memory"), HasSubstr("\n  have  aten::empty_like of ["),
                          HasSubstr("Shard(1, {1, 4, 1})"), HasSubstr("the largest block is rank 1's, of ")));
}

// Processes are notified of each other by notes, or by sockets that have closed; here their ranks are threads.
TEST_F(NcclFaults, B4_ARankThatFailsAloneEndsThoseWhoseDevicesWaitOverSockets) {
  const fake::WithNccl here;
  for (const bool says_so : {true, false}) {
    std::vector<std::string> texts(3);
    testing::on_socket_ranks(3, [&](Communicator&, CommunicatorPtr& world) {
      fake::exchange_device(world->rank());
      const auto group = make_device_communicator(world, fake::device(world->rank()), DeviceLink::kNccl);
      train(*group, 2);
      if (world->rank() == 2 && says_so) group->abort("the valve is stuck");
      if (world->rank() != 2) texts[world->rank()] = message_of([&] { train(*group, 1); });
    });

    // A rank that had been notified before may be named.
    EXPECT_THAT(texts[0], HasSubstr("of the world has failed, has ended or was lost"));
    EXPECT_THAT(texts[1], HasSubstr("of the world has failed, has ended or was lost"));
  }
}

// One that has sent what it had to is not missed; one that has not is.
TEST_F(NcclFaults, X16_ARankThatEndsEarlyIsMissedWhereItIsWaitedFor) {
  const auto texts = errors(3, {}, [](Communicator& group) {
    train(group, 3);
    if (group.rank() == 2) return;
    train(group, 1);
  });

  EXPECT_THAT(texts[0], HasSubstr("rank 2 ended without joining"));
  EXPECT_THAT(texts[1], HasSubstr("rank 2 ended without joining"));
  EXPECT_EQ(texts[2], "");
}

// Rank 0 has nothing to send or to wait for; the device of rank 2 is behind for longer than a notification of an end
// takes.
void end_one_by_one(Communicator& group, double& sum) {
  const int rank = group.rank();
  const auto part = group.split(rank == 3, rank);
  train(*part, 2);
  if (rank == 3) return;  // in another group
  const at::Tensor mine = at::ones({5}, *device_of(group));
  at::Tensor theirs = at::zeros_like(mine);
  if (rank == 2) {
    fake::enqueue(fake::current_stream(device_of(group)->index()),
                  [] { std::this_thread::sleep_for(std::chrono::seconds(1)); });
  }
  std::vector<Message> sends, receives;
  if (rank == 2) sends.push_back({1, mine});
  if (rank == 1) receives.push_back({2, theirs});
  part->exchange(std::move(sends), std::move(receives));
  if (rank == 1) sum = theirs.sum().item<double>();
  if (rank > 0) check_arrived(*part);
}

TEST_F(NcclFaults, X16_ARankThatHasDoneItsPartMayEndWhileOthersWaitForEachOther) {
  double sum = 0;
  const auto texts = errors(4, {}, [&](Communicator& group) { end_one_by_one(group, sum); });

  EXPECT_THAT(texts, Each(""));
  EXPECT_EQ(sum, 5);
}

TEST_F(NcclFaults, X16_TheSameOverSocketsWhoseLastWordsSayWhatARankHasDone) {
  const fake::WithNccl here;
  std::vector<std::string> texts(4);
  double sum = 0;
  testing::on_socket_ranks(4, [&](Communicator&, CommunicatorPtr& world) {
    fake::exchange_device(world->rank());
    auto group = make_device_communicator(world, fake::device(world->rank()), DeviceLink::kNccl);
    texts[world->rank()] = message_of([&] { end_one_by_one(*group, sum); });
    group.reset();
    world.reset();
  });

  EXPECT_THAT(texts, Each(""));
  EXPECT_EQ(sum, 5);
}

TEST_F(NcclFaults, X16_RanksInDifferentVerbsAreNamedWhereCallsAreCompared) {
  const auto texts = errors(3, {}, [](Communicator& group) {
    set_check_calls(group, true);
    train(group, 2);
    at::Tensor data = at::ones({group.rank() == 1 ? 7 : 5}, *device_of(group));
    group.all_reduce(data);
  });

  EXPECT_THAT(texts, Each(AllOf(HasSubstr("ranks 0 and 1 of this group make different calls"),
                                HasSubstr("rank 0: all_reduce of Float, 5 elements"),
                                HasSubstr("rank 1: all_reduce of Float, 7 elements"))));
}

TEST_F(NcclFaults, X16_MessagesThatDoNotFitAreNamedWhereCallsAreCompared) {
  const auto texts = errors(2, {}, [](Communicator& group) {
    set_check_calls(group, true);
    const int other = 1 - group.rank();
    at::Tensor got = at::zeros({3}, *device_of(group));
    group.exchange({{other, at::ones({3 + group.rank()}, *device_of(group))}}, {{other, got}});
  });

  EXPECT_THAT(texts, Each(HasSubstr("exchange: rank 1 of this group sends 16 bytes to rank 0, which expects 12")));
}

TEST_F(NcclFaults, X16_RanksInDifferentVerbsEndByTheirTimeLimitOtherwise) {
  const auto texts = errors(2, {}, [](Communicator& group) {
    train(group, 2);
    group.set_timeout(std::chrono::milliseconds(300));
    at::Tensor data = at::ones({group.rank() == 1 ? 7 : 5}, *device_of(group));
    group.all_reduce(data);
    data[0].item();
    check_arrived(group);
  });

  EXPECT_THAT(texts, Each(HasSubstr("all_reduce timed out after 0.3 s")));
}

// C3: a number that the device computed from messages that were given up does not leave.
TEST_F(NcclFaults, C3_NoNumberIsBelievedAfterAnAbort) {
  const auto texts = errors(2, {.rank = 0, .group_at = 1, .async_error = true}, [](Communicator& group) {
    at::Tensor data = at::ones({100}, *device_of(group));
    group.all_reduce(data);
    group.all_reduce(data);
    const double value = data[0].item<double>();
    EXPECT_NE(value, 4);
    check_arrived(group);
  });

  EXPECT_THAT(texts, Each(HasSubstr("remote process exited")));
}

// A limit counts what the device waits for, not what the ranks compute in between; and none counts where it is switched
// off.
TEST_F(NcclFaults, LimitsDoNotCountWhereTheyAreSwitchedOff) {
  const auto texts = errors(2, {}, [](Communicator& group) {
    train(group, 1);
    group.set_timeout(std::chrono::milliseconds(200));
    const WithoutTimeLimit no_limit;
    if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(600));
    train(group, 1);
  });

  EXPECT_THAT(texts, Each(std::string()));
}

}  // namespace
}  // namespace moonhalo::test_nccl_faults
