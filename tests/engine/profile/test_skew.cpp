// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/profile/skew.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <iostream>

#include "moonhalo/engine/comm/comm_observer.h"
#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/profile/profiler.h"
#include "tests/support/ranks.h"

namespace moonhalo::testing::test_skew {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMs = 1000000;

// Writes the record of a rank by hand. Its clock shows `offset` less than that of rank 0.
class Written {
 public:
  explicit Written(int64_t offset = 0) : offset_(offset) {
    record_.clock_offset = offset;
    record_.names = {"step", "module", "aten::mm", "all_reduce", "exchange", "wait"};
    record_.modules.push_back({"fast", 0});
    record_.modules.push_back({"slow", 0});
    add(0, 1000, EventKind::kStep, 0, 0);
  }
  void compute(int64_t from, int64_t to, uint16_t module) { add(from, to, EventKind::kOperator, 2, module); }
  void all_reduce(int64_t from, int64_t to, int rank, int size, uint64_t group = 1, uint64_t tag = 7) {
    record_.calls.push_back(
        {add(from, to, EventKind::kCollective, 3, 0), CommStats::kAllReduce, rank, size, group, tag});
  }
  // Posted at `at`, waited for from `from` to `to`.
  void exchange(int64_t at, int64_t from, int64_t to, int rank, int size, const std::vector<int>& receives) {
    const auto call = static_cast<uint32_t>(record_.calls.size());
    const uint32_t event = add(at, at, EventKind::kMessages, 4, 0);
    record_.calls.push_back({event, CommStats::kExchange, rank, size, 1, 9});
    for (const int peer : receives) record_.messages.push_back({call, peer, 8, 0});
    record_.events[add(from, to, EventKind::kWait, 5, 0)].value = event;
  }
  RankRecord take() { return std::move(record_); }

 private:
  uint32_t add(int64_t from, int64_t to, EventKind kind, uint32_t name, uint16_t module) {
    ProfileEvent event;
    event.begin = from * kMs - offset_;
    event.end = to * kMs - offset_;
    event.name = name;
    event.parent = record_.events.empty() ? ProfileEvent::kNoEvent : 0;
    event.module = module;
    event.kind = kind;
    record_.events.push_back(event);
    return static_cast<uint32_t>(record_.events.size() - 1);
  }
  RankRecord record_;
  int64_t offset_;
};

TEST(Skew, Y13_ARankIsLateByWhatItDidLonger) {
  Written a, b(5000 * kMs), c(-3 * kMs);
  for (Written* one : {&a, &b, &c}) one->compute(0, 10, 1);
  a.compute(10, 12, 2);
  b.compute(10, 32, 2);
  c.compute(10, 13, 2);
  a.all_reduce(12, 33, 0, 3);
  b.all_reduce(32, 33, 1, 3);
  c.all_reduce(13, 33, 2, 3);

  const std::vector<RankSkew> skew = find_skew({a.take(), b.take(), c.take()});

  ASSERT_EQ(skew.size(), 3u);
  EXPECT_EQ(skew[1].late, 20 * kMs);  // rank 0 waited from 12 to 32
  EXPECT_EQ(skew[0].late, 0);
  EXPECT_EQ(skew[2].late, 0);
  EXPECT_EQ(skew[0].waited, 20 * kMs);
  EXPECT_EQ(skew[2].waited, 19 * kMs);
  ASSERT_EQ(skew[1].causes.size(), 1u);
  EXPECT_EQ(skew[1].causes[0].module, "slow");
  EXPECT_EQ(skew[1].causes[0].what, "aten::mm");
  EXPECT_EQ(latest_rank(skew, 2), "rank 1 is 10.0 ms late, 100 % of it in slow");
  EXPECT_THAT(skew_text(skew, 1),
              AllOf(HasSubstr("rank 1  late 20.0 ms, waited 0.0 ms"), HasSubstr("20.0 ms  100 %  slow: aten::mm")));
}

// The last of three ranks in a row is late in an exchange with the second; the first waits in the sum after it.
TEST(Skew, Y13_WhoWaitedItselfIsNotLate) {
  Written a, b, c;
  a.exchange(10, 10, 10, 0, 3, {1});
  b.exchange(10, 10, 50, 1, 3, {0, 2});
  c.compute(0, 50, 2);
  c.exchange(50, 50, 50, 2, 3, {1});
  a.compute(10, 15, 1);
  b.compute(50, 55, 1);
  c.compute(50, 55, 1);
  a.all_reduce(15, 56, 0, 3);
  b.all_reduce(55, 56, 1, 3);
  c.all_reduce(55, 56, 2, 3);

  const std::vector<RankSkew> skew = find_skew({a.take(), b.take(), c.take()});

  EXPECT_EQ(skew[1].waited, 40 * kMs);
  EXPECT_EQ(skew[0].waited, 40 * kMs);
  EXPECT_EQ(skew[0].late, 0);
  EXPECT_LT(skew[1].late, 8 * kMs);  // beside its wait it did nothing that the first did not
  EXPECT_GE(skew[2].late, 40 * kMs);
  EXPECT_THAT(latest_rank(skew, 1), AllOf(HasSubstr("rank 2 is "), HasSubstr("% of it in slow")));
}

TEST(Skew, Y13_CallsOfOtherGroupsDoNotMatch) {
  Written a, b;
  b.compute(0, 30, 2);
  a.all_reduce(0, 1, 0, 1, 5);
  b.all_reduce(30, 31, 0, 1, 6);
  a.all_reduce(1, 2, 0, 2, 1, 1);
  b.all_reduce(31, 32, 1, 2, 1, 2);

  const std::vector<RankSkew> skew = find_skew({a.take(), b.take()});

  EXPECT_EQ(skew[0].waited + skew[1].waited + skew[0].late + skew[1].late, 0);
  EXPECT_EQ(latest_rank(skew, 1), "");
}

TEST(Skew, Y13_NothingIsFoundInEmptyRecords) {
  EXPECT_EQ(latest_rank(find_skew({}), 1), "");
  EXPECT_EQ(latest_rank(find_skew({RankRecord{}, RankRecord{}}), 0), "");
}

void sleep_ms(int64_t milliseconds) {
  const timespec time{milliseconds / 1000, milliseconds % 1000 * kMs};
  nanosleep(&time, nullptr);
}

// The figure is printed: a busy machine adds to it.
TEST(Skew, Y13_ARankThatSleepsInOneLayerIsNamed) {
  std::string late;
  on_ranks(3, [&](Communicator& world) {
    Profiler profiler(world.shared_from_this());
    profiler.start();
    at::Tensor sum = at::ones({4});
    for (const char* layer : {"down1", "down2", "up1"}) {
      const InModule module(layer);
      if (world.rank() == 2 && std::string(layer) == "down2") sleep_ms(200);
      world.all_reduce(sum);
    }
    profiler.stop();
    if (world.rank() == 0) late = latest_rank(profiler.summary().skew, 1);
  });

  std::cout << late << " (it slept 200 ms)\n";
  EXPECT_THAT(late, AllOf(HasSubstr("rank 2 is "), HasSubstr("% of it in down2")));
}

struct Noted : CommObserver {
  std::vector<Call> calls;
  std::vector<const void*> open;
  int waits = 0;
  uint32_t begin_call(const void* owner, const Call& call) override {
    open.push_back(owner);
    calls.push_back(call);
    return static_cast<uint32_t>(calls.size() - 1);
  }
  void begin_wait(const void* owner, uint32_t call) override {
    EXPECT_EQ(calls.at(call).verb, CommStats::kExchange);
    open.push_back(owner);
    ++waits;
  }
  void end_call(const void* owner) override {
    ASSERT_FALSE(open.empty());
    EXPECT_EQ(open.back(), owner);
    open.pop_back();
  }
};

TEST(CommObserver, Y13_SeesTheSameGroupOnAllItsRanks) {
  std::vector<std::vector<uint64_t>> groups(4);
  on_ranks(4, [&](Communicator& world) {
    Noted seen;
    set_comm_observer(&seen);
    at::Tensor sum = at::ones({3}, at::kDouble);
    world.all_reduce(sum);
    for (const int color : {world.rank() % 2, world.rank() / 2, 0}) {
      const CommunicatorPtr part = world.split(color, world.rank());
      part->all_reduce(sum);
      part->split(0, part->rank())->all_reduce(sum);
    }
    std::vector<Message> out, in;
    if (world.rank() == 0) out.push_back({1, at::ones({2}, at::kDouble)});
    if (world.rank() == 1) in.push_back({0, at::empty({2}, at::kDouble)});
    world.exchange(out, in);
    set_comm_observer(nullptr);
    world.all_reduce(sum);

    EXPECT_TRUE(seen.open.empty());
    EXPECT_EQ(seen.waits, 1);
    ASSERT_EQ(seen.calls.size(), 8u);
    EXPECT_EQ(seen.calls[7].sends.size(), world.rank() == 0 ? 1u : 0u);
    EXPECT_EQ(seen.calls[7].receives.size(), world.rank() == 1 ? 1u : 0u);
    EXPECT_EQ(seen.calls[7].bytes, world.rank() == 0 ? 16 : 0);
    EXPECT_EQ(seen.calls[7].group, seen.calls[0].group);
    for (const CommObserver::Call& call : seen.calls) groups[world.rank()].push_back(call.group);
  });

  for (int a = 0; a < 4; ++a) {
    for (int b = 0; b < 4; ++b) {
      for (size_t i = 0; i < 8; ++i) {
        const bool together = i == 0 || i > 4 || (i < 3 ? a % 2 == b % 2 : a / 2 == b / 2);
        EXPECT_EQ(groups[a][i] == groups[b][i], together) << "ranks " << a << ", " << b << ", call " << i;
        for (size_t k = i + 1; k < 7; ++k) EXPECT_NE(groups[a][i], groups[b][k]) << i << ", " << k;
      }
    }
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_skew
