// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/launch/rendezvous.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/time_limit.h"
#include "moonhalo/engine/launch/late_note.h"
#include "tests/support/held_port.h"
#include "tests/support/ipv6.h"
#include "tests/support/oracle.h"
#include "tests/support/patience.h"

namespace moonhalo::test_rendezvous {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using testing::message_of;

std::optional<MeetingPlace> place_of(const std::map<std::string, std::string>& variables, Launch::Kind kind, int rank) {
  Launch launch;
  launch.kind = kind;
  launch.rank = rank;
  launch.size = 4;
  return meeting_place(launch, [&](const char* variable) {
    const auto found = variables.find(variable);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(MeetingPlace, IsWhereTheLauncherSays) {
  std::map<std::string, std::string> torchrun = {{"MASTER_ADDR", "node7"}, {"MASTER_PORT", "29500"}};
  const auto first = place_of(torchrun, Launch::kTorchrun, 0), other = place_of(torchrun, Launch::kTorchrun, 3);
  EXPECT_EQ(first->host, "node7");
  EXPECT_EQ(first->port, 29500);
  EXPECT_TRUE(first->serves);
  EXPECT_FALSE(other->serves);
  torchrun["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  torchrun["TORCHELASTIC_RUN_ID"] = "a";
  torchrun["TORCHELASTIC_RESTART_COUNT"] = "2";
  EXPECT_FALSE(place_of(torchrun, Launch::kTorchrun, 0)->serves);
  EXPECT_EQ(place_of(torchrun, Launch::kTorchrun, 0)->run, "a/2");
  for (const char* host : {"2001:db8::7", "[2001:db8::7]"}) {
    torchrun["MASTER_ADDR"] = host;
    EXPECT_EQ(place_of(torchrun, Launch::kTorchrun, 0)->host, "2001:db8::7");
  }
  torchrun["MASTER_PORT"] = "295oo";
  EXPECT_THAT(message_of([&] { place_of(torchrun, Launch::kTorchrun, 0); }),
              HasSubstr("launch: MASTER_PORT is not a port\n  have  MASTER_PORT=295oo"));
}

TEST(MeetingPlace, OfAStepOfSlurmIsItsFirstNode) {
  for (const auto& [list, node] : {std::pair("n7", "n7"),
                                   {"n[01-04,7],m3", "n01"},
                                   {"m3,n[01-04]", "m3"},
                                   {"gpu[12]", "gpu12"},
                                   {"a-b[3,5-6]", "a-b3"}}) {
    std::map<std::string, std::string> step = {
        {"SLURM_STEP_NODELIST", list}, {"SLURM_JOB_ID", "4711"}, {"SLURM_STEP_ID", "2"}};
    const auto place = place_of(step, Launch::kSlurm, 0);
    EXPECT_EQ(place->host, node);
    EXPECT_TRUE(place->serves);
    EXPECT_EQ(place->run, "4711.2");
    EXPECT_GE(place->port, 20000);
    step["SLURM_STEP_ID"] = "3";
    EXPECT_NE(place_of(step, Launch::kSlurm, 0)->port, place->port);
  }
  EXPECT_FALSE(place_of({{"SLURM_JOB_ID", "4711"}}, Launch::kSlurm, 0));
  EXPECT_FALSE(place_of({}, Launch::kOpenMpi, 0));
}

TEST(MeetingPlace, OfOpenMpiOnOneMachineIsItsLoopback) {
  Launch launch;
  launch.kind = Launch::kOpenMpi;
  launch.rank = 1;
  launch.size = launch.local_size = 2;
  const auto place_of_job = [&](const std::string& variable, const std::string& job) {
    return meeting_place(launch, [&](const char* name) { return name == variable ? job.c_str() : nullptr; });
  };
  const auto place = place_of_job("OMPI_MCA_ess_base_jobid", "1099694081");
  ASSERT_TRUE(place);
  EXPECT_EQ(place->host, "127.0.0.1");
  EXPECT_EQ(place->run, "1099694081");
  EXPECT_FALSE(place->serves);
  EXPECT_GE(place->port, 20000);
  EXPECT_LT(place->port, 30000);
  EXPECT_NE(place->port, place_of_job("OMPI_MCA_ess_base_jobid", "1099694082")->port);
  EXPECT_EQ(place_of_job("PMIX_NAMESPACE", "prterun-n1-7@1")->run, "prterun-n1-7@1");
  EXPECT_FALSE(place_of_job("HOME", "/")) << "the name of the job is not known";
  launch.local_size = 1;
  EXPECT_FALSE(place_of_job("OMPI_MCA_ess_base_jobid", "1099694081")) << "ranks are on two machines";
}

Launch rank_of(int rank, int size) {
  Launch launch;
  launch.kind = Launch::kTorchrun;
  launch.rank = rank;
  launch.size = size;
  launch.why = "a test";
  return launch;
}

struct Coming {
  int rank, size;
  std::string job = "";
  std::chrono::milliseconds after = 0ms;
};

/// Gives the error of `body` on each of these ranks, which are threads. Ranks 0 serve the store.
std::vector<std::string> of_ranks(const std::vector<Coming>& come, std::chrono::milliseconds limit,
                                  const std::function<void(Communicator&)>& body,
                                  std::chrono::milliseconds note_after = 10s, const std::string& host = "127.0.0.1") {
  const testing::HeldPort held;
  const uint16_t port = held;
  std::vector<std::string> said(come.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < come.size(); ++i) {
    threads.emplace_back([&, i] {
      std::this_thread::sleep_for(come[i].after);
      said[i] = message_of([&] {
        const MeetingPlace place{host, port, come[i].rank == 0, "x", come[i].job};
        const auto world = make_transport_communicators(
            join_ranks(rank_of(come[i].rank, come[i].size), place, limit, note_after), 1)[0];
        body(*world);
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return said;
}

std::vector<Coming> first_ranks(int come, int size) {
  std::vector<Coming> ranks;
  for (int rank = 0; rank < come; ++rank) ranks.push_back({rank, size});
  return ranks;
}

TEST(Meeting, X22_JoinsAllRanks) {
  for (const int size : {1, 2, 3, 8}) {
    const auto said = of_ranks(first_ranks(size, size), testing::kHang, [&](Communicator& world) {
      at::Tensor data = at::full({100000}, world.rank() + 1, at::kLong);
      world.all_reduce(data);
      EXPECT_EQ(data[99999].item<int64_t>(), size * (size + 1) / 2);
      world.barrier();
    });
    EXPECT_EQ(said, std::vector<std::string>(size)) << size;
  }
}

TEST(Meeting, X22_JoinsAllRanksOverIpv6) {
  if (!testing::has_ipv6()) GTEST_SKIP() << "this machine has no ::1";
  for (const std::string host : {"::1", "localhost"}) {
    const auto said = of_ranks(
        first_ranks(3, 3), testing::kHang,
        [&](Communicator& world) {
          at::Tensor data = at::full({100000}, world.rank() + 1, at::kLong);
          world.all_reduce(data);
          EXPECT_EQ(data[99999].item<int64_t>(), 6);
        },
        10s, host);
    EXPECT_EQ(said, std::vector<std::string>(3)) << host;
  }
}

// Ranks of one machine too call the address that was given, where it is not all of the machine's.
TEST(Meeting, Y21_RanksListenAtTheAddressThatIsGiven) {
  ASSERT_EQ(setenv("MOONHALO_ADDRESS", "127.0.0.2", /*overwrite=*/1), 0);
  const auto said = of_ranks(first_ranks(3, 3), testing::kHang, [](Communicator& world) { world.barrier(); });
  unsetenv("MOONHALO_ADDRESS");
  EXPECT_EQ(said, std::vector<std::string>(3));
}

TEST(Meeting, NamesARankThatDoesNotCome) {
  const auto attempt = [](std::chrono::milliseconds limit) {
    const auto said = of_ranks(first_ranks(2, 3), limit, [](Communicator&) { FAIL(); });
    const std::string expected = "launch: rank 2 of 3 has not come within " + seconds_text(limit) + "\n  have  a test";
    for (const std::string& text : said) {
      if (text.find(expected) == std::string::npos) return "instead of \"" + expected + "\": " + text;
    }
    return std::string();
  };
  EXPECT_EQ(testing::with_longer_limits(700ms, attempt), "");
}

// Two jobs with one MASTER_PORT, or wrong numbers: all are notified at once, whoever came first.
TEST(Meeting, X22_OfRanksThatDoNotFitTogetherEndsAtOnce) {
  const struct {
    std::vector<Coming> come;
    const char *text, *who;
  } cases[] = {
      {{{0, 3}, {1, 3}, {1, 3}}, "say that they are rank 1\n  have  ", ""},
      {{{0, 3}, {1, 3}, {1, 3, "", 500ms}}, "say that they are rank 1\n  have  ", ""},
      {{{0, 2}, {0, 2, "", 300ms}}, "say that they are rank 0\n  have  ", ""},
      {{{0, 2}, {1, 3, "", 300ms}}, "do not belong to one job\n  have  ", "3 ranks, says rank 1, "},
      {{{0, 3}, {1, 2, "", 300ms}}, "do not belong to one job\n  have  ", "2 ranks, says rank 1, "},
      {{{0, 2}, {2, 5, "", 300ms}}, "do not belong to one job\n  have  ", "5 ranks, says rank 2, "},
      {{{0, 2, " of SLURM_JOB_ID=7"}, {1, 2, " of SLURM_JOB_ID=8", 300ms}},
       "do not belong to one job\n  have  ",
       "2 ranks of SLURM_JOB_ID=8, says rank 1, "},
  };
  for (const auto& one : cases) {
    const auto said = of_ranks(
        one.come, testing::kHang, [](Communicator&) { FAIL(); }, 1s);  // in which all have come
    for (const std::string& text : said) {
      EXPECT_THAT(text, HasSubstr("launch: ")) << one.text;
      EXPECT_THAT(text, HasSubstr(one.text));
      EXPECT_THAT(text, HasSubstr(one.who));
      EXPECT_THAT(text, HasSubstr("give every job a MASTER_PORT of its own"));
    }
  }
}

// A waiting process reports for what, long before the limit.
TEST(Meeting, TellsWhatItWaitsFor) {
  const struct {
    int late;
    const char* said;
  } cases[] = {{1, "moonhalo: rank 1 of 2 has not come to 127.0.0.1:"},
               {0, "moonhalo: rank 1 of 2 has not reached the store at 127.0.0.1:"}};
  for (const auto& one : cases) {
    const auto attempt = [&](std::chrono::milliseconds late) {
      std::vector<Coming> come = first_ranks(2, 2);
      come[one.late].after = late;
      ::testing::internal::CaptureStderr();
      of_ranks(
          come, testing::kHang, [](Communicator&) {}, 200ms);
      const std::string said = ::testing::internal::GetCapturedStderr();
      return said.find(one.said) == std::string::npos ? "not said: " + said : "";
    };
    EXPECT_EQ(testing::with_longer_limits(900ms, attempt), "") << one.said;
  }
}

// Where hosts differ in their libraries, some ranks wait here and some in MPI.
TEST(Meeting, SaysWhereRanksThatFoundMpiAre) {
  const std::string hint = " found no MPI (libmpi.so.40: no such file), and ranks that found it wait in MPI_Init";
  for (const int rank : {0, 1}) {
    const testing::HeldPort held;
    MeetingPlace place{"127.0.0.1", held, rank == 0, "x"};
    place.no_mpi = "libmpi.so.40: no such file";
    ::testing::internal::CaptureStderr();
    const std::string error = message_of([&] { join_ranks(rank_of(rank, 2), place, 2s, 200ms); });
    const std::string note = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(error, HasSubstr(hint)) << rank;
    EXPECT_THAT(note, HasSubstr(hint)) << rank;
    EXPECT_THAT(error, HasSubstr("give all ranks backend \"tcp\"")) << rank;
  }
}

// Where the limit comes first, the error does.
TEST(LateNote, SaysNothingWhereTheLimitComesFirst) {
  for (const auto limit : {10ms, 20ms}) {
    ::testing::internal::CaptureStderr();
    {
      const LateNote late(20ms, limit, "rank 1 has not come", "look");
      std::this_thread::sleep_for(200ms);
    }
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  }
}

TEST(Meeting, NeedsAStore) {
  const testing::HeldPort held;
  if (testing::has_ipv6()) {
    const MeetingPlace six{"::1", held, false, "x"};
    EXPECT_THAT(message_of([&] { join_ranks(rank_of(1, 2), six, 50ms); }),
                HasSubstr("launch: cannot reach the store at [::1]:" + std::to_string(six.port)));
  }
  const MeetingPlace nowhere{"127.0.0.1", held, false, "x"};
  EXPECT_THAT(message_of([&] { join_ranks(rank_of(1, 2), nowhere, 1s); }),
              HasSubstr("launch: cannot reach the store at 127.0.0.1:" + std::to_string(nowhere.port)));
}

}  // namespace
}  // namespace moonhalo::test_rendezvous
