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
#include <cmath>
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

/// The messages of a rank. What comes has the values `theirs`; what is sent is under way until wait(). Looks whether
/// memory of messages is kept, and that which is sent stays as it is.
class LateCall {
 public:
  static constexpr bool kSendsEmpty = false;

  explicit LateCall(float theirs) : theirs_(theirs) {}

  int waits = 0, waits_for_received = 0;
  float least_when_waited_for = 0;  ///< of what had come before the first wait()

  void keep(const at::Tensor& tensor) {
    if (tensor.defined()) kept_.push_back(tensor);
  }
  void send(const void* data, size_t bytes, int) {
    const auto* const begin = static_cast<const char*>(data);
    EXPECT_TRUE(is_kept(begin, bytes));
    sent_.emplace_back(begin, std::string(begin, bytes));
  }
  void receive(void* data, size_t bytes, int) {
    const auto* const begin = static_cast<const char*>(data);
    EXPECT_TRUE(is_kept(begin, bytes));
    received_.emplace_back(static_cast<float*>(data), bytes / sizeof(float));
    for (const auto& [sent, before] : sent_)
      EXPECT_TRUE(begin + bytes <= sent || sent + before.size() <= begin) << "it is being sent";
  }
  void wait_received() {
    ++waits_for_received;
    for (const auto& [begin, count] : received_) std::fill_n(begin, count, theirs_);
    received_.clear();
  }
  void wait() {
    wait_received();
    if (waits++ == 0 && watched_.defined()) least_when_waited_for = watched_.min().item<float>();
    for (const auto& [sent, before] : sent_)
      EXPECT_TRUE(before.compare(0, before.size(), sent, before.size()) == 0) << "written while it was sent";
    sent_.clear();
    kept_.clear();
  }
  void watch(const at::Tensor& values) { watched_ = values; }

 private:
  bool is_kept(const char* begin, size_t bytes) const {
    return std::any_of(kept_.begin(), kept_.end(), [&](const at::Tensor& kept) {
      const auto* const first = static_cast<const char*>(kept.const_data_ptr());
      return first <= begin && begin + bytes <= first + kept.nbytes();
    });
  }

  float theirs_;
  std::vector<std::pair<float*, size_t>> received_;
  std::vector<std::pair<const char*, std::string>> sent_;
  std::vector<at::Tensor> kept_;
  at::Tensor watched_;
};

// The sum is there before anything is waited for but what came. All is waited for before more is received into memory
// that was sent.
TEST(SumRounds, Y18_ARankAddsWhileItsOwnMessageIsUnderWay) {
  for (const int ranks : {2, 3, 4, 5, 6}) {
    const SumPlan plan(ranks);
    at::Tensor data = at::ones({ranks << 13});
    LateCall call(2);
    call.watch(data.narrow(0, 0, data.numel() / ranks));

    all_reduce_rounds(call, plan, 0, data, ReduceOp::kSum);

    const int messages = plan.direct() ? ranks - 1 : plan.tree().levels();
    EXPECT_EQ(call.least_when_waited_for, 1 + 2 * messages) << ranks;
    EXPECT_EQ(data[0].item<float>(), 1 + 2 * messages) << ranks;
    EXPECT_EQ(data[-1].item<float>(), 2) << ranks;  // as it came
  }
}

// A rank's result may be in memory that it sends.
TEST(SumRounds, Y18_NothingIsWrittenWhereItIsSent) {
  for (const int ranks : {2, 3, 5, 7, 8, 9}) {
    for (int place = 0; place < ranks; ++place) {
      at::Tensor in = at::ones({100 * ranks}), out = in.narrow(0, 100 * place, 100);
      LateCall call(2);
      reduce_scatter_rounds(call, SumPlan(ranks), 0, in, std::vector<int64_t>(ranks, 100), out, ReduceOp::kSum);
      EXPECT_GT(call.waits, 0);
    }
  }
}

// After a timeout MPI may still write to it.
TEST(CollectiveRounds, KeepAllMemoryOfMessages) {
  for (const int ranks : {2, 3, 7, 8, 9, 12}) {
    const SumPlan plan(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      for (const int64_t count : {10, 3000}) {
        SCOPED_TRACE("rank " + std::to_string(rank) + " of " + std::to_string(ranks));
        const std::vector<int64_t> counts(ranks, count);
        at::Tensor all = at::ones({count * ranks}), others = at::ones({count * ranks}), part = at::ones({count});
        LateCall call(2);
        reduce_scatter_rounds(call, plan, rank, all, counts, part, ReduceOp::kSum);
        all_reduce_rounds(call, plan, rank, all, ReduceOp::kSum);
        all_gather_rounds(call, rank, part, counts, all);
        all_to_all_rounds(call, rank, all, counts, others, counts, count);
      }
    }
  }
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
    LateCall call(1);

    EXPECT_EQ(blocks_of([&] { all_reduce_rounds(call, plan, 0, data, ReduceOp::kSum); }), 1) << ranks;
    EXPECT_EQ(call.waits_for_received - call.waits, 2 * plan.tree().levels()) << ranks;
  }
}

/// Values of two ranks. Of floats also zeros of either sign and NaN: max and min then depend on the order.
std::pair<at::Tensor, at::Tensor> values_of_two(at::ScalarType dtype) {
  at::Tensor first = (at::arange(1000, at::kDouble) * 0.37).sin().abs().mul(3),
             second = (at::arange(1000, at::kDouble) * 0.11).cos().abs().mul(3);
  if (dtype == at::kBool) return {first.gt(1.5), second.gt(1.5)};
  if (at::isFloatingType(dtype)) {
    for (const int64_t place : {0, 996}) {  // in a block, and behind the last
      first.narrow(0, place, 4).copy_(at::tensor({0.0, -0.0, double{NAN}, 1.0}));
      second.narrow(0, place, 4).copy_(at::tensor({-0.0, 0.0, 1.0, double{NAN}}));
    }
  }
  return {first.to(dtype), second.to(dtype)};
}

// Whichever place the result has, also for bools, whose partial values are bytes; and whether an operand is one rank's
// or has been reduced.
TEST(ReduceTwo, GivesTheSameBitsInPlace) {
  const auto bytes = [](const at::Tensor& tensor) { return tensor.view(at::kByte); };
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kInt, at::kByte, at::kBool, at::kComplexFloat}) {
    const at::ScalarType partial = partial_dtype(dtype);
    const auto [first, second] = values_of_two(dtype);
    for (const auto op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMax, ReduceOp::kMin}) {
      if (dtype == at::kComplexFloat && op != ReduceOp::kSum && op != ReduceOp::kProduct) continue;
      const at::Tensor reduced[] = {first.to(partial), second.to(partial)};
      const at::Tensor expected = at::empty_like(reduced[0]);
      const void* sources[] = {reduced[0].const_data_ptr(), reduced[1].const_data_ptr()};
      reduce_elements(op, partial, sources, 1000, expected.mutable_data_ptr());
      for (int variant = 0; variant < 12; ++variant) {
        const bool raw_a = variant % 2 == 0, raw_b = variant / 2 % 2 == 0;
        const at::Tensor a = (raw_a ? first : reduced[0]).clone(), b = (raw_b ? second : reduced[1]).clone();
        const at::Tensor out = std::vector{a, b, at::empty_like(expected)}[variant / 4];
        if (out.scalar_type() != partial) continue;
        reduce_two(op, dtype, {a.const_data_ptr(), raw_a}, {b.const_data_ptr(), raw_b}, 1000, out.mutable_data_ptr());
        EXPECT_TRUE(at::equal(bytes(out), bytes(expected))) << dtype << ' ' << name(op) << ' ' << variant;
      }
    }
  }
}

}  // namespace
}  // namespace moonhalo::test_sum_tree
