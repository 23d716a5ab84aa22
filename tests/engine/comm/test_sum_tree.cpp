// SPDX-License-Identifier: Apache-2.0
// The plan of a reduce-scatter, carried out with strings for values: what is added to what, on any number of ranks.
#include "moonhalo/engine/comm/sum_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace moonhalo::test_sum_tree {
namespace {

/// "((0+1)+2)+(3+4)" by the rule: as many leaves as a power of two, the first of two ranks each.
std::string sum_of(int ranks) {
  const int leaves = static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)));
  std::vector<std::string> values;
  for (int rank = 0; rank < ranks;) {
    std::string value = std::to_string(rank++);
    if (static_cast<int>(values.size()) < ranks - leaves) value = "(" + value + "+" + std::to_string(rank++) + ")";
    values.push_back(value);
  }
  while (values.size() > 1) {
    for (size_t i = 0; i < values.size() / 2; ++i) values[i] = "(" + values[2 * i] + "+" + values[2 * i + 1] + ")";
    values.resize(values.size() / 2);
  }
  return values[0];
}

struct Rank {
  std::vector<SumStep> steps;
  size_t next = 0;
  std::map<int, std::string> values;  // by part
  int messages = 0, sent = 0;         // parts sent
};

/// Every message that a rank sends is there when it is asked for.
using Posted = std::map<std::pair<int, int>, std::vector<std::pair<SumStep, std::map<int, std::string>>>>;

void post(Rank& rank, int me, Posted& posted) {
  const SumStep& step = rank.steps[rank.next];
  if (step.send_to < 0) return;
  std::map<int, std::string> values;
  for (int part = step.sent.begin; part < step.sent.end; ++part) values[part] = rank.values.at(part);
  posted[{me, step.send_to}].emplace_back(step, values);
  ++rank.messages;
  rank.sent += static_cast<int>(values.size());
}

bool take(Rank& rank, int me, Posted& posted) {
  const SumStep& step = rank.steps[rank.next];
  std::map<int, std::string> left;
  if (step.receive_from < 0) {
    for (int part = step.kept.begin; part < step.kept.end; ++part) left[part] = rank.values.at(part);
    rank.values = left;
    return true;
  }
  auto& waiting = posted[{step.receive_from, me}];
  if (waiting.empty()) return false;
  const auto [sent, values] = waiting.front();
  waiting.erase(waiting.begin());
  EXPECT_EQ(sent.sent.begin, step.kept.begin);
  EXPECT_EQ(sent.sent.end, step.kept.end);
  EXPECT_EQ(sent.final, step.final);
  for (const auto& [part, theirs] : values) {
    if (!step.final) EXPECT_EQ(step.raw, theirs.find('+') == std::string::npos);
    const std::string mine = step.final ? "" : rank.values.at(part);
    left[part] = step.final ? theirs : step.first ? "(" + mine + "+" + theirs + ")" : "(" + theirs + "+" + mine + ")";
  }
  rank.values = left;
  return true;
}

std::vector<Rank> materialize_lazy_bits(const SumPlan& plan) {
  std::vector<Rank> ranks(plan.ranks());
  Posted posted;
  for (int r = 0; r < plan.ranks(); ++r) {
    ranks[r].steps = plan.steps(r);
    for (int part = 0; part < plan.ranks(); ++part) ranks[r].values[part] = std::to_string(r);
    if (!ranks[r].steps.empty()) post(ranks[r], r, posted);
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (int r = 0; r < plan.ranks(); ++r) {
      Rank& rank = ranks[r];
      if (rank.next == rank.steps.size() || !take(rank, r, posted)) continue;
      moved = true;
      if (++rank.next < rank.steps.size()) post(rank, r, posted);
    }
  }
  for (const auto& [ends, left] : posted) EXPECT_TRUE(left.empty()) << ends.first << " to " << ends.second;
  return ranks;
}

TEST(SumPlan, Y18_EveryPartIsAddedAlongTheTreeAndComesToItsOwner) {
  for (int size = 1; size <= 130; ++size) {
    const SumPlan plan(size);
    const std::vector<Rank> ranks = materialize_lazy_bits(plan);
    std::vector<int> owners = plan.order();
    std::sort(owners.begin(), owners.end());
    for (int r = 0; r < size; ++r) {
      EXPECT_EQ(owners[r], r);
      EXPECT_EQ(ranks[r].next, ranks[r].steps.size()) << "rank " << r << " of " << size;
      ASSERT_EQ(ranks[r].values.size(), 1) << "rank " << r << " of " << size;
      EXPECT_EQ(ranks[r].values.begin()->first, plan.part_of()[r]);
      EXPECT_EQ(plan.order()[plan.part_of()[r]], r);
      EXPECT_EQ(ranks[r].values.begin()->second, sum_of(size)) << "rank " << r << " of " << size;
    }
  }
}

TEST(SumPlan, Y18_ARankSendsLogarithmicallyManyMessagesAndNoPartTwice) {
  for (int size = 1; size <= 130; ++size) {
    const std::vector<Rank> ranks = materialize_lazy_bits(SumPlan(size));
    const int rounds = static_cast<int>(std::bit_width(static_cast<unsigned>(size - 1)));
    const bool even = std::has_single_bit(static_cast<unsigned>(size));
    for (const Rank& rank : ranks) {
      EXPECT_LE(rank.messages, rounds) << size;
      EXPECT_LE(rank.sent, even ? size - 1 : size) << size;
    }
  }
}

TEST(SumPlan, LongMessagesGoToNeighbours) {
  for (const int size : {2, 4, 8, 64, 4096}) {
    const SumPlan plan(size);
    for (const int rank : {0, size - 1}) {
      int distance = 1;
      for (const SumStep& step : plan.steps(rank)) {
        EXPECT_EQ(step.send_to, rank ^ distance);
        EXPECT_EQ(step.sent.end - step.sent.begin, size / 2 / distance);
        distance *= 2;
      }
    }
  }
}

}  // namespace
}  // namespace moonhalo::test_sum_tree
