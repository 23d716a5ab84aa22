// SPDX-License-Identifier: Apache-2.0
// Steps of rings that a dry run leaves out, against tapes of all of them.
#include "moonhalo/engine/forecast/tape_steps.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "moonhalo/engine/base/backward_on_this_thread.h"
#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/fake/root_facts.h"
#include "moonhalo/engine/forecast/fake_tensor.h"
#include "moonhalo/engine/forecast/tape_recorder.h"
#include "moonhalo/engine/forecast/tape_summary.h"
#include "moonhalo/engine/model/parallel_plan.h"
#include "moonhalo/engine/profile/memory.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo::testing::test_tape_steps {
namespace {

// Two steps of rank 2 of eight. Each makes a block, receives keys from a rank ahead, and frees the block of the step
// before.
struct TwoSteps {
  Tape tape;
  std::array<TapePlace, 3> begins{};

  TwoSteps() {
    tape.rank = 2;
    tape.ranks = 8;
    const uint32_t group = tape.group_number(TapeGroup::of({0, 1, 2, 3, 4, 5, 6, 7}));
    const TapeOperator product{.name = tape.name_number("aten::mm"), .macs = 64};
    tape.events.push_back({Phase::kScript, 0, TapeBlock{.bytes = 8, .id = 1}});
    for (uint32_t step = 0; step < 2; ++step) {
      begins[step] = {tape.events.size(), 1 + step, 3 + step};
      const auto ahead = static_cast<int32_t>(step + 2);
      tape.events.push_back({Phase::kForward, 0, TapeBlock{.bytes = 8, .id = 2 + step}});
      tape.events.push_back(
          {Phase::kForward, 0,
           TapeExchange{
               .group = group, .number = 5 + step, .id = 3 + step, .sends = {{-ahead, 8}}, .receives = {{ahead, 8}}}});
      tape.events.push_back({Phase::kForward, 0, product});
      tape.events.push_back({Phase::kForward, 0, TapeWait{3 + step}});
      tape.events.push_back({Phase::kForward, 0, TapeBlock{.bytes = -8, .id = 1 + step}});
    }
    begins[2] = {tape.events.size(), 3, 5};
  }

  template <typename What>
  What& last(size_t event) {
    return std::get<What>(tape.events.at(begins[1].events + event).what);
  }
  bool are_equal() const { return equal_but_for_peers(tape, begins, 1); }
};

TEST(TapeSteps, X14_PeersAloneMayDiffer) {
  EXPECT_TRUE(TwoSteps().are_equal());
  const auto differs = [](auto change) {
    TwoSteps steps;
    change(steps);
    return !steps.are_equal();
  };
  EXPECT_TRUE(differs([](TwoSteps& s) { s.last<TapeBlock>(0).bytes = 16; }));
  EXPECT_TRUE(differs([](TwoSteps& s) { s.last<TapeBlock>(4).id = 0; })) << "it was there before";
  EXPECT_TRUE(differs([](TwoSteps& s) { s.last<TapeBlock>(4).id = 3; })) << "the block of the same step";
  EXPECT_TRUE(differs([](TwoSteps& s) { s.last<TapeExchange>(1).receives[0].bytes = 4; }));
  EXPECT_TRUE(differs([](TwoSteps& s) { s.last<TapeExchange>(1).sends.clear(); }));
  EXPECT_TRUE(differs([](TwoSteps& s) { s.last<TapeExchange>(1).number = 8; })) << "another call of the group between";
  EXPECT_TRUE(differs([](TwoSteps& s) { s.last<TapeOperator>(2).macs = 65; }));
  EXPECT_TRUE(differs([](TwoSteps& s) { s.last<TapeWait>(3).id = 3; }));
  EXPECT_TRUE(differs([](TwoSteps& s) { s.tape.events.back().phase = Phase::kBackward; }));
  EXPECT_TRUE(differs([](TwoSteps& s) { s.tape.events.at(s.begins[1].events + 2).what = TapeVerb{}; }));
  EXPECT_TRUE(differs([](TwoSteps& s) { s.tape.events.push_back({Phase::kForward, 0, TapeWait{9}}); }));
  EXPECT_TRUE(differs([](TwoSteps& s) { s.begins[1] = s.begins[2]; })) << "no exchange";
}

TEST(TapeSteps, X14_RepeatedStepsHaveNumbersAndPeersOfTheirOwn) {
  TwoSteps steps;
  Tape& tape = steps.tape;
  const size_t before = tape.events.size(), of_step = 5;
  const auto offset_of = [](uint32_t, bool sends, size_t step, size_t part, int64_t later) {
    EXPECT_EQ(step + part, 0);
    return static_cast<int32_t>(sends ? -3 - later : 3 + later);
  };
  EXPECT_EQ(repeat_period(tape, steps.begins[1], steps.begins[2], 3, offset_of), 0);

  ASSERT_EQ(tape.events.size(), before + 3 * of_step);
  for (uint32_t later = 1; later <= 3; ++later) {
    const size_t begin = before + (later - 1) * of_step;
    const auto& call = std::get<TapeExchange>(tape.events[begin + 1].what);
    EXPECT_EQ(std::get<TapeBlock>(tape.events[begin].what).id, 3 + later);
    EXPECT_EQ(call.number, 6 + later);
    EXPECT_EQ(call.id, 4 + later);
    EXPECT_EQ(call.sends, (std::vector<TapePart>{{-3 - static_cast<int32_t>(later), 8}}));
    EXPECT_EQ(call.receives, (std::vector<TapePart>{{3 + static_cast<int32_t>(later), 8}}));
    EXPECT_EQ(std::get<TapeWait>(tape.events[begin + 3].what).id, 4 + later);
    EXPECT_EQ(std::get<TapeBlock>(tape.events[begin + 4].what).id, 2 + later);
  }
}

/// Attention over rows that all ranks of a mesh share.
struct RingCase {
  const char* name;
  int ranks = 0;
  int64_t rows = 0;
  Placements queries, keys;
  bool is_causal = false;
};

int64_t called_operators = 0;

/// Counts the operators that this thread calls while it exists.
class CountOperators {
 public:
  CountOperators()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback([](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
              ++called_operators;
              return nullptr;
            }).scopes({at::RecordScope::FUNCTION}))) {
    called_operators = 0;
  }
  ~CountOperators() { at::removeCallback(handle_); }
  CountOperators(const CountOperators&) = delete;
  CountOperators& operator=(const CountOperators&) = delete;

 private:
  at::CallbackHandle handle_;
};

/// Its tape forward and backward, and the operators that were called.
struct RecordedRing {
  Tape tape;
  int64_t called = 0;

  RecordedRing(const RingCase& one, int rank, bool leaves_out, const std::string& backend = "nccl") {
    const MemoryCount counted;
    const FakeResults fakes;
    const BackwardOnThisThread here;
    const auto world = make_fake_communicator(rank, one.ranks, nullptr, backend);
    const MeshPtr mesh = init_device_mesh(*world, "cpu", {one.ranks}, {"ranks"});
    const auto field = [&](const Placements& placements) {
      const SpecPtr spec = make_spec(mesh, {2, 4, one.rows, 64}, placements);
      return from_local(make_fake(spec->local_shape(), at::kFloat), spec).requires_grad_();
    };
    const at::Tensor query = field(one.queries), key = field(one.keys), value = field(one.keys);
    const CountOperators counting;
    TapeRecorder recorder(*world);
    if (leaves_out) recorder.leave_out_equal_steps();
    at::scaled_dot_product_attention(query, key, value, {}, 0, one.is_causal).square().sum().backward();
    tape = recorder.take();
    called = called_operators;
  }
};

TEST(TapeSteps, X14_RingsThatLeaveOutStepsHaveTheSameTape) {
  const Placements even{shard(2)}, none{replicate()};
  const Placements uneven{shard(2, {3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 0, 0, 2})};
  const Placements in_threes{shard(2, {5, 0, 2, 5, 0, 2, 5, 0, 2, 5, 0, 2, 5, 0, 2, 5, 0, 2, 5, 0, 2, 5, 0, 2})};
  const Placements other{shard(2, {25, 5, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 5, 5})};
  const std::vector<RingCase> cases{
      {"even", 16, 160, even, even},        {"causal", 8, 80, even, even, true},
      {"uneven", 16, 36, uneven, uneven},   {"in threes", 24, 56, in_threes, in_threes},
      {"too few rows", 16, 12, even, even}, {"queries alone", 8, 80, even, none},
      {"keys alone", 8, 80, none, even},    {"few ranks", 3, 30, even, even},
      {"other keys", 16, 160, even, other},
  };
  for (const RingCase& one : cases) {
    for (const char* backend : {"nccl", "threads", "mpi"}) {
      for (const int rank : {0, one.ranks / 2, one.ranks - 1}) {
        SCOPED_TRACE(std::string(one.name) + ", " + backend + ", rank " + std::to_string(rank));
        const RecordedRing all(one, rank, false, backend), some(one, rank, true, backend);

        EXPECT_EQ(some.tape.hash(), all.tape.hash());
        ASSERT_EQ(some.tape.events.size(), all.tape.events.size());
        EXPECT_EQ(counts_of(some.tape, rank), counts_of(all.tape, rank));
        EXPECT_EQ(peak_of(some.tape).bytes, peak_of(all.tape).bytes);
        for (size_t i = 0; i < all.tape.events.size(); ++i) {
          const auto *block = std::get_if<TapeBlock>(&some.tape.events[i].what),
                     *made = std::get_if<TapeBlock>(&all.tape.events[i].what);
          ASSERT_EQ(block != nullptr, made != nullptr);
          if (block != nullptr) EXPECT_EQ(block->id, made->id) << "event " << i;
        }
      }
    }
  }
}

// Every rank has ten rows, or every fourth one.
TEST(TapeSteps, X14_LongRingsCallAsManyOperatorsAsShortOnes) {
  for (const bool all : {true, false}) {
    const auto ring_of = [&](int ranks) {
      std::vector<int64_t> sizes;
      for (int rank = 0; rank < ranks; ++rank) sizes.push_back(all || rank % 4 == 3 ? 10 : 0);
      const Placements rows{shard(2, sizes)};
      return RingCase{"", ranks, (all ? ranks : ranks / 4) * 10, rows, rows};
    };
    const RecordedRing few(ring_of(64), 3, true), many(ring_of(2048), 3, true);

    EXPECT_EQ(few.called, many.called);
    EXPECT_GT(many.tape.events.size(), 20 * few.tape.events.size());
    EXPECT_GT(RecordedRing(ring_of(64), 3, false).called, 3 * few.called);
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_tape_steps
