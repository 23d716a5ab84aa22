// SPDX-License-Identifier: Apache-2.0
// The messages and bytes that forecasts assume of collectives, beside those that are sent.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "moonhalo/engine/comm/collective_messages.h"
#include "moonhalo/engine/comm/device/device_costs.h"
#include "moonhalo/engine/comm/message_costs.h"
#include "moonhalo/engine/comm/mpi/mpi_costs.h"
#include "moonhalo/engine/comm/threads/thread_costs.h"
#include "tests/support/mailboxes.h"

namespace moonhalo::test_verb_costs {
namespace {

using at::Tensor;
using testing::Sent;

/// A call with `elements` elements in all, of the dtype.
struct Case {
  const char* name;
  CommStats::Kind verb;
  std::function<int64_t(int)> elements;
  at::ScalarType dtype = at::kFloat;
};

int64_t item_of(const Case& one) { return one.dtype == at::kFloat ? 4 : 2; }

void call(Communicator& comm, const Case& one) {
  const int64_t n = one.elements(comm.size());
  const std::vector<int64_t> counts = even_shares(n, comm.size());
  const int64_t mine = counts[comm.rank()];
  Tensor all = at::ones({n}, one.dtype), part = at::ones({mine}, one.dtype), out = at::empty({n}, one.dtype);
  switch (one.verb) {
    case CommStats::kAllReduce:
      return comm.all_reduce(all);
    case CommStats::kReduceScatter:
      return comm.reduce_scatter(all, counts, part);
    case CommStats::kAllGather:
      return comm.all_gather(part, counts, out);
    case CommStats::kAllToAll: {
      const std::vector<int64_t> parts(comm.size(), n / comm.size());
      return comm.all_to_all(all, parts, out, parts, n / comm.size());
    }
    case CommStats::kBroadcast:
      return comm.broadcast(all, 0);
    default:
      return comm.barrier();
  }
}

// Messages have at most 1,024 bytes, or at least 2,048, as sent_in_world counts them.
const std::vector<Case> kCases = {
    {"all_reduce, short", CommStats::kAllReduce, [](int) { return 8; }},
    {"all_reduce", CommStats::kAllReduce, [](int ranks) { return ranks * 16384 + 3; }},
    {"all_reduce of halves", CommStats::kAllReduce, [](int ranks) { return ranks * 32768; }, at::kBFloat16},
    {"reduce_scatter", CommStats::kReduceScatter, [](int ranks) { return ranks * 1024 + 1; }},
    {"all_gather", CommStats::kAllGather, [](int ranks) { return ranks * 1024 + 2; }},
    {"all_to_all", CommStats::kAllToAll, [](int ranks) { return ranks * 1024; }},
    {"all_to_all of short parts", CommStats::kAllToAll, [](int ranks) { return ranks * 8; }},
    {"broadcast", CommStats::kBroadcast, [](int) { return 1024; }},
    {"barrier", CommStats::kBarrier, [](int) { return 1; }},
};

TEST(VerbCosts, X14_AreWhatIsSentByEveryRank) {
  for (const Case& one : kCases) {
    for (const int ranks : {2, 3, 4, 5, 6, 7, 8, 13, 16}) {
      const std::vector<Sent> sent = testing::sent_in_world(ranks, [&](Communicator& comm) { call(comm, one); });
      const int64_t bytes = one.elements(ranks) * item_of(one);
      for (int rank = 0; rank < ranks; ++rank) {
        const VerbCost cost = message_cost(one.verb, bytes, ranks, rank, item_of(one));
        EXPECT_EQ(cost.messages(), sent[rank].messages) << one.name << ", rank " << rank << " of " << ranks;
        EXPECT_EQ(cost.bytes(), sent[rank].bytes) << one.name << ", rank " << rank << " of " << ranks;
      }
    }
  }
}

TEST(VerbCosts, X14_AreTheMessagesThatThreadsCount) {
  for (const Case& one : kCases) {
    if (one.verb == CommStats::kBarrier) continue;
    for (int ranks = 2; ranks <= 8; ++ranks) {
      std::vector<int64_t> counted(ranks);
      run_ranks(ranks, [&](Communicator& comm) {
        comm.reset_stats();
        call(comm, one);
        counted[comm.rank()] = comm.stats().by_kind[one.verb].messages;
      });
      for (int rank = 0; rank < ranks; ++rank) {
        const VerbCost cost = message_cost(one.verb, one.elements(ranks) * item_of(one), ranks, rank, item_of(one));
        EXPECT_EQ(cost.messages(), counted[rank]) << one.name << ", rank " << rank << " of " << ranks;
      }
    }
  }
}

// The slowest rank of a sum has all rounds that any rank has.
TEST(VerbCosts, SlowestPlaceHasTheMostRounds) {
  for (const int ranks : {4, 7, 12, 48}) {
    const int64_t bytes = 4 * 65536 * ranks;
    const int place = slowest_place(CommStats::kAllReduce, bytes, ranks);
    const size_t rounds = message_cost(CommStats::kAllReduce, bytes, ranks, place).rounds.size();
    for (int rank = 0; rank < ranks; ++rank)
      EXPECT_LE(message_cost(CommStats::kAllReduce, bytes, ranks, rank).rounds.size(), rounds)
          << rank << " of " << ranks;
  }
}

// Neighbours come first, so long messages stay within a host.
TEST(VerbCosts, HalvingBeginsWithTheNextRank) {
  const VerbCost cost = message_cost(CommStats::kReduceScatter, 1 << 20, 8, 0);

  ASSERT_EQ(cost.rounds.size(), 3U);
  EXPECT_EQ(cost.rounds[0].reach, 1);
  EXPECT_EQ(cost.rounds[0].bytes, 1 << 19);
  EXPECT_EQ(cost.rounds[2].reach, 4);
  EXPECT_EQ(cost.rounds[2].bytes, 1 << 17);
  EXPECT_EQ(cost.rounds[0].partners, VerbRound::kPairs);
}

TEST(VerbCosts, MpiComparesCallsBesideTheData) {
  const VerbCost cost = mpi_cost(CommStats::kExchange, 0, 1024);
  EXPECT_TRUE(cost.rounds.empty());
  EXPECT_EQ(cost.beside.size(), 10U);
  EXPECT_EQ(cost.beside[0].bytes, 24);
  EXPECT_TRUE(mpi_cost(CommStats::kExchange, 0, 1024, 4, false).beside.empty());
}

TEST(VerbCosts, ThreadsWaitOnceForShortTensorsAndTwiceForLongOnes) {
  EXPECT_EQ(thread_cost(CommStats::kAllReduce, 64, 4).barriers, 1);
  EXPECT_EQ(thread_cost(CommStats::kAllReduce, 1 << 20, 4).barriers, 2);
  EXPECT_EQ(thread_cost(CommStats::kAllReduce, 1 << 20, 4).copied, 2 << 20);
  EXPECT_EQ(thread_cost(CommStats::kAllReduce, 1 << 20, 1).barriers, 0);
}

TEST(VerbCosts, NcclHasARingAndATree) {
  const std::vector<VerbCost> costs = nccl_costs(CommStats::kAllReduce, 8000, 8);

  ASSERT_EQ(costs.size(), 2U);
  EXPECT_EQ(costs[0].messages(), 14);
  EXPECT_EQ(costs[0].bytes(), 14000);
  EXPECT_EQ(costs[1].messages(), 6);
  EXPECT_EQ(costs[1].bytes(), 16000);
  EXPECT_EQ(staged_cost({}, 1000).staged, 2000);
}

}  // namespace
}  // namespace moonhalo::test_verb_costs
