// SPDX-License-Identifier: Apache-2.0
// The plan of a reduce-scatter, carried out with strings for values: what is added to what, on any number of ranks. And
// what a rank does while its messages are under way.
#include "moonhalo/engine/comm/sum_tree.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "moonhalo/engine/comm/collective_rounds.h"
#include "moonhalo/engine/comm/reduction_kernels.h"

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

/// The messages of rank 0 of two. What comes has the values `theirs`; what is sent is under way until wait().
class CallOfTwo {
 public:
  static constexpr bool kSendsEmpty = false;

  explicit CallOfTwo(float theirs) : theirs_(theirs) {}

  int waits = 0, waits_for_received = 0;
  float least_when_waited_for = 0;  ///< of what had come before the first wait()

  void keep(const at::Tensor&) {}
  void send(const void* data, size_t bytes, int) {
    const auto* const begin = static_cast<const char*>(data);
    sent_.push_back({begin, begin + bytes});
  }
  void receive(void* data, size_t bytes, int) {
    received_ = {static_cast<float*>(data), static_cast<float*>(data) + bytes / sizeof(float)};
    const auto* const begin = static_cast<const char*>(data);
    for (const auto& [sent, end] : sent_) EXPECT_TRUE(begin + bytes <= sent || end <= begin) << "it is being sent";
  }
  void wait_received() {
    ++waits_for_received;
    std::fill(received_.first, received_.second, theirs_);
    received_ = {};
  }
  void wait() {
    wait_received();
    if (waits++ == 0 && watched_.defined()) least_when_waited_for = watched_.min().item<float>();
    sent_.clear();
  }
  void watch(const at::Tensor& values) { watched_ = values; }

 private:
  float theirs_;
  std::pair<float*, float*> received_{};
  std::vector<std::pair<const char*, const char*>> sent_;
  at::Tensor watched_;
};

// The sum of 3 is there before anything is waited for but what came. All is waited for before more is received into
// memory that was sent.
TEST(SumRounds, Y18_ARankAddsWhileItsOwnMessageIsUnderWay) {
  const SumPlan plan(2);
  at::Tensor data = at::ones({1 << 15});
  CallOfTwo call(2);
  call.watch(data.narrow(0, 0, data.numel() / 2));

  all_reduce_rounds(call, plan, 0, data, ReduceOp::kSum);

  EXPECT_EQ(call.least_when_waited_for, 3);
  EXPECT_EQ(data[0].item<float>(), 3);
  EXPECT_EQ(data[-1].item<float>(), 2);  // as it came
}

/// The blocks of memory that tensors got while `work` ran.
int64_t blocks_of(const std::function<void()>& work) {
  struct Blocks final : c10::MemoryReportingInfoBase {
    int64_t count = 0;
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override { count += bytes > 0 ? 1 : 0; }
    bool memoryProfilingEnabled() const override { return true; }
  };
  const auto blocks = std::make_shared<Blocks>();
  const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, blocks);
  work();
  return blocks->count;
}

// One for what comes, whatever the number of rounds: nothing of a rank's own is copied.
TEST(SumRounds, Y18_ASumOfFloatsTakesOneBlockOfMemory) {
  for (const int ranks : {2, 4, 16}) {
    const SumPlan plan(ranks);
    at::Tensor data = at::ones({ranks << 13});
    CallOfTwo call(1);  // of any number: it does not look at ranks

    EXPECT_EQ(blocks_of([&] { all_reduce_rounds(call, plan, 0, data, ReduceOp::kSum); }), 1) << ranks;
    EXPECT_EQ(call.waits_for_received - call.waits, 2 * plan.tree().levels()) << ranks;
  }
}

// Whichever place the result has, and for bools, whose partial values are bytes.
TEST(ReduceTwo, GivesTheSameBitsInPlace) {
  const auto bytes = [](const at::Tensor& tensor) { return tensor.view(at::kByte); };
  for (const auto dtype : {at::kFloat, at::kDouble, at::kInt, at::kByte, at::kBool, at::kComplexFloat}) {
    for (const auto op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMax}) {
      if (dtype == at::kComplexFloat && op == ReduceOp::kMax) continue;
      const at::Tensor first = (at::arange(1000, at::kDouble) * 0.37).sin().abs().mul(3).to(dtype),
                       second = (at::arange(1000, at::kDouble) * 0.11).cos().abs().mul(3).to(dtype);
      const at::Tensor expected = at::empty_like(first);
      const void* sources[] = {first.const_data_ptr(), second.const_data_ptr()};
      reduce_elements(op, dtype, sources, 1000, expected.mutable_data_ptr());
      for (const int place : {0, 1, 2}) {
        const at::Tensor a = first.clone(), b = second.clone(), apart = at::empty_like(first);
        const at::Tensor& out = place == 0 ? a : place == 1 ? b : apart;
        reduce_two(op, dtype, {a.const_data_ptr(), true}, {b.const_data_ptr(), true}, 1000, out.mutable_data_ptr());
        EXPECT_TRUE(at::equal(bytes(out), bytes(expected))) << dtype << ' ' << name(op) << ' ' << place;
      }
    }
  }
}

}  // namespace
}  // namespace moonhalo::test_sum_tree
