// SPDX-License-Identifier: Apache-2.0
// Messages and bytes of every collective of ranks that send messages, counted as they are sent.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"
#include "tests/support/collective_formulas.h"
#include "tests/support/mailboxes.h"
#include "tests/support/ranks.h"

namespace moonhalo::test_collective_counts {
namespace {

using testing::counted_verbs;
using testing::CountedVerb;
using testing::rounds_of;
using testing::Sent;

Sent most(const std::vector<Sent>& sent) {
  Sent result;
  for (const Sent& one : sent) {
    result.messages = std::max(result.messages, one.messages);
    result.bytes = std::max(result.bytes, one.bytes);
  }
  return result;
}

TEST(CollectiveCounts, Y18_AreThoseOfTheFormulas) {
  for (const CountedVerb& verb : counted_verbs()) {
    for (const int ranks : {2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64}) {
      const Sent sent = most(testing::sent_in_world(ranks, verb.call));
      EXPECT_EQ(sent.messages, verb.messages(ranks)) << verb.name << " of " << ranks;
      EXPECT_NEAR(1.0 * sent.bytes / verb.unit(ranks), verb.bytes(ranks), 1e-9) << verb.name << " of " << ranks;
    }
  }
}

// Messages are 2 log2 P + 2 at most, bytes the least and a twentieth; with 7, 9 and 10 ranks, and an eleventh.
TEST(CollectiveCounts, Y18_SumsStayWithinTheirBounds) {
  const CountedVerb& sum = counted_verbs()[1];
  for (int ranks = 2; ranks <= 34; ++ranks) {
    const Sent sent = most(testing::sent_in_world(ranks, sum.call));
    const double least = 2.0 * (ranks - 1) / ranks, more = ranks == 7 || ranks == 9 || ranks == 10 ? 1.0 / 11 : 0.05;
    EXPECT_LE(sent.messages, 2 * rounds_of(ranks) + 2) << ranks;
    EXPECT_LE(1.0 * sent.bytes / sum.unit(ranks), least * (1 + more) + 1e-9) << ranks;
  }
}

// Values of half types are sent in float when several ranks' have been added.
TEST(CollectiveCounts, Y18_HalfTypesSendUpToAQuarterMore) {
  for (const int ranks : {2, 4, 8, 16, 64}) {
    const int64_t elements = counted_verbs()[1].unit(ranks) / 4;
    const auto call = [elements](Communicator& comm) {
      at::Tensor data = at::ones({elements}, at::kBFloat16);
      comm.all_reduce(data);
    };
    const Sent sent = most(testing::sent_in_world(ranks, call));
    const double bytes = static_cast<double>(sent.bytes) / static_cast<double>(2 * elements);
    EXPECT_NEAR(bytes, 2.5 - 3.0 / ranks, 1e-9) << ranks;
  }
}

// CommStats says the same of messages, on every rank.
TEST(CollectiveCounts, Y18_AreWhatTheCommunicatorSays) {
  for (const CountedVerb& verb : counted_verbs()) {
    if (std::string(verb.name) == "barrier") continue;
    for (const int ranks : {2, 3, 4, 5, 7, 8, 13, 16}) {
      std::vector<int64_t> told(ranks);
      const std::vector<Sent> sent = testing::sent_in_world(ranks, [&](Communicator& comm) {
        comm.reset_stats();
        verb.call(comm);
        told[comm.rank()] = comm.stats().total().messages;
      });
      for (int r = 0; r < ranks; ++r)
        EXPECT_EQ(told[r], sent[r].messages) << verb.name << ", rank " << r << " of " << ranks;
    }
  }
}

// The kernel counts what this process has sent so far through its TCP connections: heads of messages, too, but nothing
// twice.
int64_t bytes_through_sockets() {
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    int protocol = 0;
    tcp_info info = {};
    socklen_t length = sizeof(protocol);
    if (getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &length) != 0 || protocol != IPPROTO_TCP) continue;
    length = sizeof(info);
    EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
    bytes += static_cast<int64_t>(info.tcpi_bytes_sent - info.tcpi_bytes_retrans);
  }
  return bytes;
}

Sent most_of_all_ranks(Communicator& comm, Sent mine) {
  at::Tensor most = at::tensor({mine.messages, mine.bytes}, at::kLong);
  comm.all_reduce(most, ReduceOp::kMax);
  return {most[0].item<int64_t>(), most[1].item<int64_t>()};
}

// Processes run this, too (MOONHALO_TEST_RANKS). Bytes are those of the sockets, where there are any: beside the data
// these have the heads of its messages, and of those of the barriers around them.
TEST(CollectiveCounts, Y18_OfRanksAreThoseOfTheFormulas) {
  constexpr int64_t kHeadBytes = 512;
  for (const int ranks : {2, 3, 4, 8, 16}) {
    testing::run_test_ranks(ranks, [&](Communicator& comm) {
      for (const CountedVerb& verb : counted_verbs()) {
        const bool data = std::string(verb.name) != "barrier";
        comm.barrier();
        comm.reset_stats();
        const int64_t before = bytes_through_sockets();
        verb.call(comm);
        const int64_t messages = comm.stats().total().messages;
        comm.barrier();
        const Sent sent = most_of_all_ranks(comm, {messages, bytes_through_sockets() - before});
        if (data) EXPECT_EQ(sent.messages, verb.messages(ranks)) << verb.name << " of " << ranks;
        if (std::string(comm.backend()) != "tcp") continue;
        const double least = verb.bytes(ranks) * static_cast<double>(verb.unit(ranks));
        const int64_t heads = kHeadBytes * (verb.messages(ranks) + 2 * rounds_of(ranks));
        EXPECT_GE(static_cast<double>(sent.bytes) + 0.5, least) << verb.name << " of " << ranks;
        EXPECT_LE(static_cast<double>(sent.bytes), least + static_cast<double>(heads)) << verb.name << " of " << ranks;
      }
    });
  }
}

std::string counted_table() {
  const int kRanks[] = {2, 3, 4, 7, 8, 16, 32, 64};
  std::ostringstream table;
  table << "| ranks |";
  for (const int ranks : kRanks) table << " " << ranks << " |";
  table << "\n|---|";
  for (size_t i = 0; i < std::size(kRanks); ++i) table << "---|";
  table << "\n";
  for (const CountedVerb& verb : counted_verbs()) {
    table << "| " << verb.name << " |";
    for (const int ranks : kRanks) {
      const Sent sent = most(testing::sent_in_world(ranks, verb.call));
      char cell[64];
      std::snprintf(cell, sizeof(cell), " %ld, %.2f |", static_cast<long>(sent.messages),
                    static_cast<double>(sent.bytes) / static_cast<double>(verb.unit(ranks)));
      table << cell;
    }
    table << "\n";
  }
  return table.str();
}

TEST(CollectiveCounts, Y18_TheTableOfTheDocumentationIsCounted) {
  const auto path = std::filesystem::path(__FILE__).parent_path() / "../../../docs/clusters.md";
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  ASSERT_FALSE(text.empty()) << path;
  const std::string table = counted_table();
  EXPECT_NE(text.find("\n\n" + table + "\n"), std::string::npos) << path << " has another table than\n" << table;
}

}  // namespace
}  // namespace moonhalo::test_collective_counts
