// SPDX-License-Identifier: Apache-2.0
// Two jobs whose ranks connect at one port.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <list>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/launch/rendezvous.h"
#include "moonhalo/engine/launch/store_client.h"
#include "tests/support/held_port.h"
#include "tests/support/oracle.h"
#include "tests/support/patience.h"

namespace moonhalo::test_two_jobs {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::kHang;
using testing::message_of;

struct Job {
  int size;
  std::string id = "", run = "x";
};

const char* const kTaken = "launch: rank 0 cannot serve the store at 127.0.0.1:";
const char* const kRemedy = "Address already in use: another job or program has the port\n  fix   give every job a";

/// Ranks as threads, each of which comes when the test says so. `tell`: for how long a rank 0 that has failed serves
/// its error to the others.
class Ranks {
 public:
  explicit Ranks(std::chrono::milliseconds tell = kHang) : tell_(tell) {}
  ~Ranks() {
    for (One& one : all_) one.thread.join();
  }
  void come(const Job& job, int rank) {
    One& one = all_.emplace_back(job, rank);
    one.thread = std::thread([this, &one] {
      Launch launch;
      launch.kind = Launch::kTorchrun;
      launch.rank = one.rank;
      launch.size = one.job.size;
      launch.why = "a test";
      const MeetingPlace place{"127.0.0.1", port_, one.rank == 0, one.job.run, one.job.id};
      one.said = message_of([&] {
        const auto world = make_transport_communicators(join_ranks(launch, place, kHang, tell_), 1)[0];
        at::Tensor data = at::ones({1}, at::kLong);
        world->all_reduce(data);
        EXPECT_EQ(data.item<int64_t>(), one.job.size);
        world->barrier();
      });
    });
  }
  /// The error of the rank that came as number `i`, once it has ended.
  const std::string& said(size_t i) {
    One& one = *std::next(all_.begin(), static_cast<ptrdiff_t>(i));
    if (one.thread.joinable()) one.thread.join();
    one.thread = std::thread([] {});
    return one.said;
  }
  StoreClient store() const { return {"127.0.0.1", port_, MeetingClock::now() + kHang}; }
  void wait_for_entry(const std::string& name) {
    EXPECT_TRUE(store().wait({name}, MeetingClock::now() + kHang)) << name;
  }

 private:
  struct One {
    One(const Job& its_job, int its_rank) : job(its_job), rank(its_rank) {}
    Job job;
    int rank;
    std::string said = {};
    std::thread thread = {};
  };
  const std::chrono::milliseconds tell_;
  const testing::HeldPort port_;
  std::list<One> all_;
};

// The last rank comes long after the others have ended.
TEST(TwoJobs, X22_NoRankWaitsForItsLimit) {
  const struct {
    Job first, other;
    const char* said;
  } cases[] = {
      {{2}, {3}, "do not belong to one job\n  have  "},
      {{3}, {2}, "do not belong to one job\n  have  "},
      {{2, " of SLURM_JOB_ID=7"}, {2, " of SLURM_JOB_ID=8"}, "do not belong to one job\n  have  "},
      {{2}, {2}, "say that they are rank "},
  };
  for (const auto& one : cases) {
    Ranks ranks;
    ranks.come(one.first, 0);
    ranks.wait_for_entry("moonhalo/x/rank0");
    ranks.come(one.other, 0);
    for (int rank = 1; rank < one.first.size; ++rank) ranks.come(one.first, rank);
    for (int rank = 1; rank + 1 < one.other.size; ++rank) ranks.come(one.other, rank);
    for (int i = 2; i < one.first.size + one.other.size - 1; ++i) EXPECT_THAT(ranks.said(i), HasSubstr(one.said));
    std::this_thread::sleep_for(1500ms);
    ranks.come(one.other, one.other.size - 1);
    for (int i = 0; i < one.first.size + one.other.size; ++i) {
      EXPECT_THAT(ranks.said(i), HasSubstr(one.said)) << i;
      EXPECT_THAT(ranks.said(i), HasSubstr("give every job a MASTER_PORT of its own")) << i;
    }
  }
}

// Steps of Slurm and jobs with keys of their own have entries of their own: the first job goes on.
TEST(TwoJobs, X22_TheSecondOneEndsWithAClearError) {
  const Job first{2}, other{3, "", "y"};
  Ranks ranks;
  ranks.come(first, 0);
  ranks.wait_for_entry("moonhalo/x/rank0");
  for (int rank = 0; rank < 3; ++rank) ranks.come(other, rank);
  for (const int i : {1, 2, 3}) EXPECT_THAT(ranks.said(i), AllOf(HasSubstr(kTaken), HasSubstr(kRemedy)));
  ranks.come(first, 1);
  EXPECT_EQ(ranks.said(4), "");
  EXPECT_EQ(ranks.said(0), "");
}

// The store of the first one has gone when the last rank of the other comes; rank 0 of that has taken the port.
TEST(TwoJobs, X22_TheSecondOneEndsAlsoWhenTheFirstHasMet) {
  const auto attempt = [](std::chrono::milliseconds tell) {
    const Job first{2}, other{3, "", "y"};
    Ranks ranks(tell);
    ranks.come(first, 0);
    ranks.wait_for_entry("moonhalo/x/rank0");
    ranks.come(other, 0);
    ranks.come(other, 1);
    EXPECT_THAT(ranks.said(2), HasSubstr(kTaken));
    ranks.come(first, 1);
    EXPECT_EQ(ranks.said(3), "");
    EXPECT_EQ(ranks.said(0), "");
    ranks.come(other, 2);
    EXPECT_THAT(ranks.said(1), HasSubstr(kTaken));
    return ranks.said(4).find(kTaken) == std::string::npos ? ranks.said(4) : "";
  };
  EXPECT_EQ(testing::with_longer_limits(4s, attempt), "");
}

// It has read where all ranks are, and one of them stops before it calls.
TEST(TwoJobs, X22_ARankThatIsStillToBeCalledEndsToo) {
  Ranks ranks(1s);
  ranks.come({2}, 0);
  ranks.wait_for_entry("moonhalo/x/rank0");
  StoreClient store = ranks.store();
  store.set("moonhalo/x/rank1", "n1/0 1 at 127.0.0.1");
  std::istringstream words(store.get({"moonhalo/x/rank0"})[0]);
  std::string machine, answer(64, '\0');
  uint16_t port = 0;
  words >> machine >> port;
  const Socket socket = connect_to(stream_addresses("127.0.0.1", port).at(0), MeetingClock::now() + kHang);
  const std::string call = std::string("moonhal1") + std::string("\1\0\0\0\0\0\0\0", 8) + std::string(32, 'a');
  ASSERT_TRUE(send_all(socket.get(), call.data(), call.size()));
  ASSERT_TRUE(read_all(socket.get(), answer.data(), answer.size(), MeetingClock::now() + kHang));
  store.set("moonhalo/x/rank0", "!3 ranks\n2 ranks\nlaunch: another job has come");
  EXPECT_EQ(ranks.said(0), "launch: another job has come");
}

}  // namespace
}  // namespace moonhalo::test_two_jobs
