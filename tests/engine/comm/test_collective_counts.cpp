// SPDX-License-Identifier: Apache-2.0
// Messages and bytes of every collective of ranks that send messages, counted as they are sent.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

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
#include "tests/support/mailboxes.h"

namespace moonhalo::test_collective_counts {
namespace {

using at::Tensor;
using Counts = std::vector<int64_t>;
using testing::Sent;

// A rank's share of what takes several messages, and a short part.
constexpr int64_t kLong = 1024, kShort = 8;

int rounds_of(int ranks) {
  int rounds = 0;
  while (1 << rounds < ranks) ++rounds;
  return rounds;
}
bool even(int ranks) { return 1 << rounds_of(ranks) == ranks; }

struct Verb {
  const char* name;
  void (*call)(Communicator&);
  /// Bytes that the table counts in: of a rank's tensor, of all ranks' together where it has a part of these.
  int64_t (*unit)(int ranks);
  int (*messages)(int ranks);
  double (*bytes)(int ranks);  ///< the most that a rank sends, in these units; negative: less than that
};

Tensor floats(int64_t n) { return at::ones({n}); }
int64_t long_bytes(int ranks) { return ranks * kLong * 4; }
int64_t short_bytes(int) { return kShort * 4; }
int64_t all_short_bytes(int ranks) { return ranks * kShort * 4; }
// More than 64 KiB on all ranks together.
int64_t sum_elements(int ranks) { return ranks * kLong * (ranks < 8 ? 16 : 1); }
double others(int ranks) { return (ranks - 1.0) / ranks; }

void all_reduce(Communicator& comm, int64_t n, at::ScalarType dtype = at::kFloat) {
  Tensor data = at::ones({n}, dtype);
  comm.all_reduce(data);
}
void turn(Communicator& comm, int64_t n, int64_t largest) {
  Tensor out = floats(n * comm.size());
  comm.all_to_all(floats(n * comm.size()), Counts(comm.size(), n), out, Counts(comm.size(), n), largest);
}
bool direct(int ranks) { return ranks == 3 || ranks == 5 || ranks == 6; }
int sum_messages(int ranks) { return direct(ranks) ? ranks - 1 : rounds_of(ranks); }
// A rank without a place among a power of two gives away all that it has.
double sum_bytes(int ranks) { return even(ranks) || direct(ranks) ? others(ranks) : 1; }

const std::vector<Verb> kVerbs = {
    {"all_reduce, 64 KiB on all ranks together", [](Communicator& c) { all_reduce(c, kShort); }, short_bytes, rounds_of,
     [](int ranks) { return ranks - 1.0; }},
    {"all_reduce above", [](Communicator& c) { all_reduce(c, sum_elements(c.size())); },
     [](int ranks) { return 4 * sum_elements(ranks); },
     [](int ranks) { return sum_messages(ranks) + rounds_of(ranks); },
     [](int ranks) { return sum_bytes(ranks) + others(ranks); }},
    {"reduce_scatter",
     [](Communicator& c) {
       Tensor out = floats(kLong);
       c.reduce_scatter(floats(c.size() * kLong), Counts(c.size(), kLong), out);
     },
     long_bytes, sum_messages, sum_bytes},
    {"all_gather",
     [](Communicator& c) {
       Tensor out = floats(c.size() * kLong);
       c.all_gather(floats(kLong), Counts(c.size(), kLong), out);
     },
     long_bytes, rounds_of, others},
    {"all_to_all", [](Communicator& c) { turn(c, kLong, kLong); }, long_bytes, [](int ranks) { return ranks - 1; },
     others},
    {"all_to_all, parts of 1 KiB at most", [](Communicator& c) { turn(c, kShort, kShort); }, all_short_bytes,
     [](int ranks) { return std::min(ranks - 1, rounds_of(ranks)); },
     [](int ranks) {
       double parts = 0;
       for (int part = 1; part < ranks; ++part) parts += __builtin_popcount(part);
       return ranks < 4 ? others(ranks) : parts / ranks;
     }},
    {"broadcast",
     [](Communicator& c) {
       Tensor data = floats(kLong);
       c.broadcast(data, 0);
     },
     [](int) { return kLong * 4; }, rounds_of, [](int ranks) { return 1.0 * rounds_of(ranks); }},
    {"barrier", [](Communicator& c) { c.barrier(); }, [](int) { return int64_t{1}; }, rounds_of,
     [](int) { return 0.0; }},
};

Sent most(const std::vector<Sent>& sent) {
  Sent result;
  for (const Sent& one : sent) {
    result.messages = std::max(result.messages, one.messages);
    result.bytes = std::max(result.bytes, one.bytes);
  }
  return result;
}

TEST(CollectiveCounts, Y18_AreThoseOfTheFormulas) {
  for (const Verb& verb : kVerbs) {
    for (const int ranks : {2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64}) {
      const Sent sent = most(testing::sent_in_world(ranks, verb.call));
      EXPECT_EQ(sent.messages, verb.messages(ranks)) << verb.name << " of " << ranks;
      EXPECT_NEAR(1.0 * sent.bytes / verb.unit(ranks), verb.bytes(ranks), 1e-9) << verb.name << " of " << ranks;
    }
  }
}

// Messages are 2 log2 P + 2 at most, bytes the least and a twentieth; with 7, 9 and 10 ranks, and an eleventh.
TEST(CollectiveCounts, Y18_SumsStayWithinTheirBounds) {
  const Verb& sum = kVerbs[1];
  for (int ranks = 2; ranks <= 34; ++ranks) {
    const Sent sent = most(testing::sent_in_world(ranks, sum.call));
    const double least = 2 * others(ranks), more = ranks == 7 || ranks == 9 || ranks == 10 ? 1.0 / 11 : 0.05;
    EXPECT_LE(sent.messages, 2 * rounds_of(ranks) + 2) << ranks;
    EXPECT_LE(1.0 * sent.bytes / sum.unit(ranks), least * (1 + more) + 1e-9) << ranks;
  }
}

// Values of half types are sent in float when several ranks' have been added.
TEST(CollectiveCounts, Y18_HalfTypesSendUpToAQuarterMore) {
  for (const int ranks : {2, 4, 8, 16, 64}) {
    const auto call = [](Communicator& comm) { all_reduce(comm, sum_elements(comm.size()), at::kBFloat16); };
    const Sent sent = most(testing::sent_in_world(ranks, call));
    const double bytes = static_cast<double>(sent.bytes) / static_cast<double>(2 * sum_elements(ranks));
    EXPECT_NEAR(bytes, 2.5 - 3.0 / ranks, 1e-9) << ranks;
  }
}

// CommStats says the same of messages, on every rank.
TEST(CollectiveCounts, Y18_AreWhatTheCommunicatorSays) {
  for (const Verb& verb : kVerbs) {
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

std::string counted_table() {
  const int kRanks[] = {2, 3, 4, 7, 8, 16, 32, 64};
  std::ostringstream table;
  table << "| ranks |";
  for (const int ranks : kRanks) table << " " << ranks << " |";
  table << "\n|---|";
  for (size_t i = 0; i < std::size(kRanks); ++i) table << "---|";
  table << "\n";
  for (const Verb& verb : kVerbs) {
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
