// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/launch/rendezvous.h"

#include <ATen/ATen.h>
#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <thread>

#include "moonhalo/engine/comm/communicator.h"
#include "tests/support/oracle.h"

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
  torchrun["MASTER_PORT"] = "295oo";
  EXPECT_THAT(message_of([&] { place_of(torchrun, Launch::kTorchrun, 0); }),
              HasSubstr("launch: MASTER_PORT is no port\n  have  MASTER_PORT=295oo"));
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

uint16_t free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ::close(socket);
  return ntohs(address.sin_port);
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
                                  std::chrono::milliseconds note_after = 10s) {
  const uint16_t port = free_port();
  std::vector<std::string> said(come.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < come.size(); ++i) {
    threads.emplace_back([&, i] {
      std::this_thread::sleep_for(come[i].after);
      said[i] = message_of([&] {
        const MeetingPlace place{"127.0.0.1", port, come[i].rank == 0, "x", come[i].job};
        const auto world =
            make_transport_communicators(meet(rank_of(come[i].rank, come[i].size), place, limit, note_after), 1)[0];
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
    const auto said = of_ranks(first_ranks(size, size), 20s, [&](Communicator& world) {
      at::Tensor data = at::full({100000}, world.rank() + 1, at::kLong);
      world.all_reduce(data);
      EXPECT_EQ(data[99999].item<int64_t>(), size * (size + 1) / 2);
      world.barrier();
    });
    EXPECT_EQ(said, std::vector<std::string>(size)) << size;
  }
}

TEST(Meeting, NamesARankThatDoesNotCome) {
  const auto said = of_ranks(first_ranks(2, 3), 700ms, [](Communicator&) { FAIL(); });
  for (const std::string& text : said)
    EXPECT_THAT(text, HasSubstr("launch: rank 2 of 3 has not come within 0.7 s\n  have  a test"));
}

// Two jobs with one MASTER_PORT, or wrong numbers: all hear of it at once, whoever came first.
TEST(Meeting, X22_OfRanksThatDoNotFitTogetherEndsAtOnce) {
  const struct {
    std::vector<Coming> come;
    const char* text;
  } cases[] = {
      {{{0, 3}, {1, 3}, {1, 3}}, "say that they are rank 1\n  have  "},
      {{{0, 3}, {1, 3}, {1, 3, "", 500ms}}, "say that they are rank 1\n  have  "},
      {{{0, 2}, {0, 2, "", 300ms}}, "say that they are rank 0\n  have  "},
      {{{0, 2}, {1, 3, "", 300ms}}, "do not belong to one job\n  have  3 ranks, says rank 1, "},
      {{{0, 3}, {1, 2, "", 300ms}}, "do not belong to one job\n  have  2 ranks, says rank 1, "},
      {{{0, 2}, {2, 5, "", 300ms}}, "do not belong to one job\n  have  5 ranks, says rank 2, "},
      {{{0, 2, " of SLURM_JOB_ID=7"}, {1, 2, " of SLURM_JOB_ID=8", 300ms}}, "2 ranks of SLURM_JOB_ID=8, says rank 1, "},
  };
  for (const auto& one : cases) {
    const auto begin = std::chrono::steady_clock::now();
    const auto said = of_ranks(one.come, 60s, [](Communicator&) { FAIL(); });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
    for (const std::string& text : said) {
      EXPECT_THAT(text, HasSubstr("launch: ")) << one.text;
      EXPECT_THAT(text, HasSubstr(one.text));
      EXPECT_THAT(text, HasSubstr("give every job a MASTER_PORT of its own"));
    }
  }
}

// One who waits is told for what, long before the limit.
TEST(Meeting, TellsWhatItWaitsFor) {
  ::testing::internal::CaptureStderr();
  of_ranks(
      {{0, 2}, {1, 2, "", 900ms}}, 20s, [](Communicator&) {}, 200ms);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("moonhalo: rank 1 of 2 has not come to 127.0.0.1:"));
  ::testing::internal::CaptureStderr();
  of_ranks(
      {{0, 2, "", 900ms}, {1, 2}}, 20s, [](Communicator&) {}, 200ms);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("moonhalo: rank 1 of 2 has not reached the store at 127.0.0.1:"));
}

TEST(Meeting, NeedsAStore) {
  const MeetingPlace nowhere{"127.0.0.1", free_port(), false, "x"};
  EXPECT_THAT(message_of([&] { meet(rank_of(1, 2), nowhere, 1s); }),
              HasSubstr("launch: cannot reach the store at 127.0.0.1:" + std::to_string(nowhere.port)));
}

}  // namespace
}  // namespace moonhalo::test_rendezvous
