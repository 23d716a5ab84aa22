// SPDX-License-Identifier: Apache-2.0
// Limits of the time that ranks wait for each other (X16), and what they do meanwhile.
#include "moonhalo/engine/comm/time_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "moonhalo/engine/comm/comm_context.h"
#include "moonhalo/engine/comm/communicator_backend.h"
#include "moonhalo/engine/comm/polling_pause.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"

namespace moonhalo::test_time_limit {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using testing::message_of;

TEST(TimeLimit, IsANumberOfSecondsFromAMillisecondOn) {
  EXPECT_EQ(parse_time_limit("5"), 5000ms);
  EXPECT_EQ(parse_time_limit("0.001"), 1ms);
  EXPECT_EQ(parse_time_limit("1e9"), std::chrono::milliseconds(int64_t{1000000000000}));
  for (const char* text : {"", "0", "0.0009", "-1", "nan", "inf", "5s", "1e10", "soon"})
    EXPECT_FALSE(parse_time_limit(text)) << text;
  ::setenv("MOONHALO_TIMEOUT_S", "0.0009", 1);
  EXPECT_THAT(message_of([] { make_self_communicator(); }),
              HasSubstr("MOONHALO_TIMEOUT_S: not a number of seconds from 0.001"));
  ::unsetenv("MOONHALO_TIMEOUT_S");
}

TEST(TimeLimit, OfAScopeHoldsForTheCommunicatorsMadeInIt) {
  {
    const DefaultTimeLimit outer(3s), none(std::nullopt);
    EXPECT_EQ(make_self_communicator()->timeout(), 3s);
  }
  EXPECT_EQ(make_self_communicator()->timeout(), 10min);
}

TEST(TimeLimit, OfAWorldReachesTheGroupsThatAreThereAndThoseToCome) {
  run_ranks(2, [](Communicator& world) {
    const CommunicatorPtr before = world.split(0, world.rank()), inner = before->split(0, world.rank());

    backend_of(*before).set_time_limit(7s);

    for (Communicator* group : {&world, before.get(), inner.get()}) EXPECT_EQ(group->timeout(), 7s);
    EXPECT_EQ(inner->split(0, world.rank())->timeout(), 7s);
  });
}

TEST(TimeLimit, DoesNotHoldWhereARankWorksAlone) {
  run_ranks(3, [](Communicator& world) {
    world.set_timeout(200ms);
    const WithoutTimeLimit patient;
    if (world.rank() == 0) std::this_thread::sleep_for(800ms);
    world.barrier();
    if (world.rank() == 0) {
      std::this_thread::sleep_for(800ms);
      world.exchange({{1, at::ones({3})}}, {});
    } else if (world.rank() == 1) {
      world.exchange({}, {{0, at::ones({3})}});
    } else {
      world.exchange({}, {});
    }
  });
}

TEST(WaitingTime, CountsASecondAtMostBetweenTwoLooks) {
  WaitingTime time;
  std::this_thread::sleep_for(1200ms);

  EXPECT_EQ(time.poll(), 1s);
  EXPECT_GT(time.left(5s), 0s);  // which looks again
  EXPECT_LE(time.left(1s), 0s);
}

// On a core that others keep busy a rank does not sleep while its message may still be on the way.
TEST(PollingPause, IsAsLongAsAMessageTakes) {
  const PollingPause for_a_word(8), for_a_mebibyte(1 << 20), for_a_gibibyte(1 << 30);

  for (const PollingPause* pause : {&for_a_word, &for_a_mebibyte, &for_a_gibibyte}) {
    EXPECT_EQ(pause->step(20us, false), PollingPause::kPoll);
    EXPECT_EQ(pause->step(20us, true), PollingPause::kPoll);
    EXPECT_EQ(pause->step(21us, false), PollingPause::kYield);
    EXPECT_EQ(pause->step(10s, false), PollingPause::kYield);
    EXPECT_EQ(pause->step(2001us, true), PollingPause::kNap);
  }
  EXPECT_EQ(for_a_word.step(21us, true), PollingPause::kNap);
  EXPECT_EQ(for_a_mebibyte.step(1ms, true), PollingPause::kPoll);
  EXPECT_EQ(for_a_mebibyte.step(1100us, true), PollingPause::kNap);
  EXPECT_EQ(for_a_gibibyte.step(PollingPause::kLongest, true), PollingPause::kPoll);
}

// Naps ask for less slack than threads have.
TEST(PollingPause, LeavesTheTimerSlackOfTheThreadAsItWas) {
  const int before = ::prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
  ASSERT_EQ(::prctl(PR_SET_TIMERSLACK, 12345, 0, 0, 0), 0);
  comm_context->crowded_until = std::chrono::steady_clock::now() + 1h;

  PollingPause(0).pause(10s);

  EXPECT_EQ(::prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0), 12345);
  comm_context->crowded_until = {};
  ::prctl(PR_SET_TIMERSLACK, before, 0, 0, 0);
}

/// From here on no thread can be started but those whose stacks are there: one of 64 MiB does not fit any more.
void be_short_of_threads(int more) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, size_t{64} << 20);
  pthread_setattr_default_np(&attributes);
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t bytes = static_cast<rlim_t>(pages) * 4096 + (rlim_t{80} << 20) * more + (32 << 20);
  const rlimit limit{bytes, bytes};
  setrlimit(RLIMIT_AS, &limit);
}

TEST(RunRanksDeathTest, SaysWhichThreadCannotBeStartedAndRunsNone) {
  const auto start = [] {
    be_short_of_threads(1);
    const std::string message =
        message_of([] { run_ranks(4, [](Communicator&) { std::fprintf(stderr, "a rank ran\n"); }); });
    std::fprintf(stderr, "%s\n", message.c_str());
    std::_Exit(message.find("a rank") == std::string::npos ? 0 : 1);
  };

  EXPECT_EXIT(start(), ::testing::ExitedWithCode(0),
              "^run_ranks: cannot start the thread of rank 1 of 4\n  have  .*\n  fix   use fewer ranks");
}

}  // namespace
}  // namespace moonhalo::test_time_limit
