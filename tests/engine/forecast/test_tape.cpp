// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/tape.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "moonhalo/engine/base/backward_on_this_thread.h"
#include "moonhalo/engine/comm/fake/fake_subgroup.h"
#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/engine/exchange/redistribution.h"
#include "moonhalo/engine/forecast/fake_tensor.h"
#include "moonhalo/engine/forecast/least_time.h"
#include "moonhalo/engine/forecast/shape_rules.h"
#include "moonhalo/engine/forecast/tape_recorder.h"
#include "moonhalo/engine/forecast/tape_summary.h"
#include "moonhalo/engine/profile/memory.h"
#include "moonhalo/engine/profile/recorder.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/ranks.h"

namespace moonhalo::testing::test_tape {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

TEST(TapeGroup, X14_GridsOfRanksHaveNoPlaceOfTheirOwn) {
  // A mesh of 2 x 3 x 4: rank = 12 i + 4 j + k.
  const TapeGroup rows = TapeGroup::of({5, 9, 1 + 12}), columns = TapeGroup::of({4, 5, 6, 7});
  const TapeGroup middle = TapeGroup::of({13, 17, 21}), of_first = TapeGroup::of({1, 5, 9});

  EXPECT_EQ(columns, TapeGroup::of({20, 21, 22, 23}));
  EXPECT_THAT(columns.members(10), ElementsAre(8, 9, 10, 11));
  EXPECT_EQ(columns.place(10), 2);
  EXPECT_THAT(rows.ranks, ElementsAre(5, 9, 13)) << "its ranks begin within the grid that their strides make";
  EXPECT_EQ(rows.place(9), 1);
  EXPECT_EQ(of_first.size(), 3);
  EXPECT_EQ(middle.size(), 3);
  const TapeGroup both = TapeGroup::of({0, 1, 2, 3, 12, 13, 14, 15});
  ASSERT_EQ(both.steps.size(), 2);
  EXPECT_THAT(both.members(14), ElementsAre(0, 1, 2, 3, 12, 13, 14, 15));
  EXPECT_EQ(both.place(14), 6);
  EXPECT_THAT(TapeGroup::of({7}).members(3), ElementsAre(3));
  EXPECT_THAT(TapeGroup::of({0, 1, 5}).ranks, ElementsAre(0, 1, 5));
}

Tape small_tape(int64_t rank) {
  Tape tape;
  tape.rank = rank;
  tape.ranks = 8;
  tape.live = 100;
  const uint32_t group = tape.group_number(TapeGroup::of({0, 1, 2, 3, 4, 5, 6, 7})), module = tape.module_number("fc");
  const TapeOperator product{.name = tape.name_number("aten::mm"), .work = WorkKind::kProduct, .macs = 64, .bytes = 48};
  tape.events = {{Phase::kForward, module, TapeBlock{.bytes = 50, .id = 1}},
                 {Phase::kForward, module, product},
                 {Phase::kForward, 0, TapeExchange{.group = group, .sends = {{1, 8}}, .receives = {{-1, 8}}}},
                 {Phase::kForward, 0, TapeWait{0}},
                 {Phase::kBackward, module, TapeBlock{.bytes = 30, .id = 2}},
                 {Phase::kBackward, 0, TapeBlock{.bytes = -50, .id = 1}},
                 {Phase::kBackward, 0, TapeVerb{.group = group, .number = 1, .data = 44, .sent = 80, .item = 4}},
                 {Phase::kOptimizer, 0, TapeBlock{.bytes = -20, .id = 0}}};
  return tape;
}

TEST(Tape, X14_RanksThatDoTheSameHaveEqualHashes) {
  const Tape tape = small_tape(3);
  EXPECT_EQ(tape.hash(), small_tape(5).hash());
  const auto changed = [&](size_t event, auto what) {
    Tape other = tape;
    other.events[event].what = what;
    return other.hash();
  };
  EXPECT_NE(tape.hash(), changed(0, TapeBlock{.bytes = 51, .id = 1}));
  EXPECT_NE(tape.hash(), changed(2, TapeExchange{.sends = {{2, 8}}, .receives = {{-1, 8}}}));
  EXPECT_NE(tape.hash(), changed(6, TapeVerb{.number = 1, .data = 48, .item = 4}));
  EXPECT_EQ(tape.hash(), changed(6, TapeVerb{.number = 1, .data = 44, .sent = 4, .messages = 7, .item = 4}));
}

TEST(Tape, X14_BlocksThatAreFreedOneAfterAnotherMayComeInAnyOrder) {
  const auto hash_of = [](std::vector<int64_t> changes) {
    Tape tape = small_tape(3);
    for (const int64_t bytes : changes) tape.events.push_back({Phase::kScript, 0, TapeBlock{.bytes = bytes}});
    return tape.hash();
  };

  EXPECT_EQ(hash_of({-8, -16, 32}), hash_of({-16, -8, 32}));
  EXPECT_NE(hash_of({-8, -16, 32}), hash_of({-8, -24, 32}));
  EXPECT_NE(hash_of({-8, 32, -16}), hash_of({-16, 32, -8}));
  EXPECT_NE(hash_of({8, 16, -32}), hash_of({16, 8, -32}));
}

TEST(Tape, X14_PeakAndCountsFollowTheEvents) {
  const Tape tape = small_tape(3);

  const TapePeak peak = peak_of(tape);

  EXPECT_EQ(peak.bytes, 180);
  EXPECT_EQ(place_text(tape, peak.module, peak.phase), "module fc, backward");
  ASSERT_EQ(peak.held.size(), 3);
  EXPECT_TRUE(peak.held[0].before);
  EXPECT_EQ(peak.held[1].bytes, 50);
  // 11 elements on 8 ranks: the first three own two, the others one.
  EXPECT_EQ(counts_of(tape, 0)[static_cast<size_t>(Verb::kAllReduce)].bytes, (9 + 2 * 7) * 4);
  EXPECT_EQ(counts_of(tape, 7)[static_cast<size_t>(Verb::kAllReduce)].bytes, (10 + 7) * 4);
  EXPECT_EQ(total(counts_of(tape, 7)).calls, 2);
  const RankTapes all{{8}, {"ranks"}, {tape}, std::vector<int32_t>(8, 0)};
  const std::vector<VerbCounts> counts = counts_of_ranks(all);
  ASSERT_EQ(counts.size(), 8U);
  for (int64_t rank = 0; rank < 8; ++rank) EXPECT_EQ(counts[rank], counts_of(tape, rank)) << rank;
}

// Rank 1 of a pipeline of four, and of a mesh of 2 x 2, whose dims are groups of their own.
TEST(TapeRecorder, X14_GroupsOfADryRunAreApart) {
  const FakeResults fakes;
  const auto world = make_fake_communicator(1, 4);
  const MeshPtr mesh = init_device_mesh(*world, "cpu", {2, 2}, {"data", "rows"});
  const CommunicatorPtr before = make_fake_subgroup(*world, {0, 1}), after = make_fake_subgroup(*world, {1, 2});
  at::Tensor data = at::ones({4});

  TapeRecorder recorder(*world);
  before->exchange({{0, data}}, {});
  after->exchange({}, {{1, data}});
  mesh->group(0).all_reduce(data);
  mesh->group(1).all_reduce(data);
  const Tape tape = recorder.take();

  std::vector<int32_t> offsets;
  std::vector<std::vector<int64_t>> groups;
  for (const TapeEvent& event : tape.events) {
    if (const auto* exchange = std::get_if<TapeExchange>(&event.what)) {
      for (const auto* list : {&exchange->sends, &exchange->receives}) {
        for (const TapePart& part : *list) offsets.push_back(part.offset);
      }
      groups.push_back(tape.groups.at(exchange->group).members(1));
    } else if (const auto* verb = std::get_if<TapeVerb>(&event.what)) {
      groups.push_back(tape.groups.at(verb->group).members(1));
    }
  }
  EXPECT_THAT(offsets, ElementsAre(-1, 1));
  EXPECT_THAT(groups, ElementsAre(ElementsAre(0, 1), ElementsAre(1, 2), ElementsAre(1, 3), ElementsAre(0, 1)));
}

// A step of a sharded program: its bytes and messages are those that the communicators count, its live memory is that
// of the rank, and of operators the local ones alone are there.
TEST(TapeRecorder, X14_ATapeHasWhatTheRankDid) {
  const MemoryCount counted;
  const auto world = make_fake_communicator(5, 8);
  const MeshPtr mesh = init_device_mesh(*world, "cpu", {2, 4}, {"data", "rows"});
  const FakeResults fakes;
  const SpecPtr spec = make_spec(mesh, {2, 3, 400, 300}, {shard(0), shard(2)});
  const at::Tensor x = from_local(at::ones(spec->local_shape()), spec);
  const at::Tensor weight = at::ones({8, 3, 3, 3}).requires_grad_(true);
  const CommStats before = world->stats();
  const int64_t live = memory_use().live;
  reset_memory_peak();

  TapeRecorder recorder(*world);
  {
    const BackwardOnThisThread here;
    at::conv2d(x, weight, {}, 1, 1).square().sum().backward();
  }
  const Tape tape = recorder.take();

  const VerbCount sent = total(counts_of(tape, 5));
  EXPECT_EQ(sent.bytes, world->stats().total().bytes - before.total().bytes);
  EXPECT_EQ(sent.messages, world->stats().total().messages - before.total().messages);
  EXPECT_EQ(sent.calls, world->stats().total().calls - before.total().calls);
  EXPECT_EQ(tape.live, live);
  EXPECT_EQ(peak_of(tape).bytes, memory_use().peak);
  const int64_t outputs = 8 * 100 * 300;
  int64_t macs = 0;
  for (const TapeEvent& event : tape.events) {
    if (const auto* call = std::get_if<TapeOperator>(&event.what)) macs += call->macs;
  }
  // Forward, and the gradient of the weight, which also reads rows of neighbours.
  EXPECT_GE(macs, 2 * outputs * 3 * 9);
  EXPECT_LE(macs, 2 * outputs * 3 * 9 * 105 / 100);
  EXPECT_THAT(unknown_work(tape), IsEmpty());
}

// The reasons for which calls of a rank of four send, each once.
class WhyMessages : public ::testing::Test {
 protected:
  std::vector<Traffic> why(const std::function<void()>& call) {
    TapeRecorder recorder(*world_);
    {
      const BackwardOnThisThread here;
      call();
    }
    const Tape tape = recorder.take();
    std::vector<Traffic> all;
    for (const TapeEvent& event : tape.events) {
      const auto* verb = std::get_if<TapeVerb>(&event.what);
      if (verb != nullptr && verb->counted) all.push_back(verb->traffic);
      if (const auto* exchange = std::get_if<TapeExchange>(&event.what)) all.push_back(exchange->traffic);
    }
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
  }
  at::Tensor ones(std::vector<int64_t> shape, Placement placement) {
    const SpecPtr spec = make_spec(mesh_, shape, {std::move(placement)});
    return from_local(at::ones(spec->local_shape()), spec);
  }

  CommunicatorPtr world_ = make_fake_communicator(1, 4);
  MeshPtr mesh_ = init_device_mesh(*world_, "cpu", {4}, {"rows"});
};

const auto kAreOfGradients = AllOf(Contains(Traffic::kGradients), Not(Contains(Traffic::kRedistribute)));

TEST_F(WhyMessages, X14_FieldsSendEdgesSumsAndTheirInputs) {
  const at::Tensor x = ones({1, 1, 16, 8}, shard(2)), weight = at::ones({1, 1, 3, 3}).requires_grad_(true);
  EXPECT_THAT(why([&] { at::conv2d(x, weight.detach(), {}, 1, 1); }), ElementsAre(Traffic::kHalo));
  EXPECT_THAT(why([&] { x.softmax(2); }), ElementsAre(Traffic::kAllReduce));
  EXPECT_THAT(why([&] { x.sum().exp(); }), ElementsAre(Traffic::kInputs));
  EXPECT_THAT(why([&] { redistribute(x, {shard(3)}); }), ElementsAre(Traffic::kRedistribute));
  EXPECT_THAT(why([&] { from_local(at::ones({2, 2}), mesh_, {shard(0)}); }), ElementsAre(Traffic::kDistribute));
  EXPECT_THAT(why([&] { world_->barrier(); }), ElementsAre(Traffic::kOther));
  const at::Tensor loss = at::conv2d(x, weight, {}, 1, 1).sum();
  EXPECT_THAT(why([&] { loss.backward(); }), kAreOfGradients) << "of a plain weight";
}

TEST_F(WhyMessages, X14_StoredParametersAreGatheredAndTheirGradientsSummed) {
  // With few samples it would be the samples that move, and not sums of gradients.
  const at::Tensor x = ones({96, 12}, shard(0)), weight = ones({12, 12}, stored(0)).requires_grad_(true);
  at::Tensor loss;
  EXPECT_THAT(why([&] { loss = at::mm(x, weight).square().sum(); }), ElementsAre(Traffic::kParameters));
  EXPECT_THAT(why([&] { loss.backward(); }), kAreOfGradients);
  // Rows of it, as of queries, keys and values in one tensor.
  EXPECT_THAT(why([&] { loss = at::linear(x, weight.narrow(0, 4, 4)).square().sum(); }),
              ElementsAre(Traffic::kParameters));
  EXPECT_THAT(why([&] { loss.backward(); }), kAreOfGradients);
}

// The blocks of rows of a fake tensor become blocks of columns: every rank sends to all others.
at::Tensor rows_to_columns(Communicator& world, int64_t rows, int64_t columns) {
  const MeshPtr mesh = init_device_mesh(world, "cpu", {world.size()}, {"ranks"});
  const SpecPtr from = make_spec(mesh, {4, rows, columns}, {shard(1)});
  const SpecPtr to = make_spec(mesh, {4, rows, columns}, {shard(2)});
  return redistribute_local(make_fake(from->local_shape(), at::kFloat), from, to);
}

// Every rank has read all rows from the last to the first; its gradient goes back to all owners.
at::Tensor add_back_reversed(Communicator& world, int64_t rows, int64_t columns) {
  const MeshPtr mesh = init_device_mesh(world, "cpu", {world.size()}, {"ranks"});
  const SpecPtr spec = make_spec(mesh, {rows, columns}, {shard(0)});
  const IntervalMap map(spec, [&](int64_t) {
    return std::vector<HaloRequest>{{{0, rows}, Boundary::kZero, /*reversed=*/true}, {{0, columns}}};
  });
  return scatter_add(map, make_fake({rows, columns}, at::kFloat));
}

using Move = at::Tensor (*)(Communicator& world, int64_t rows, int64_t columns);

/// The recorded work of a rank in a move.
struct RecordedMove {
  std::map<std::string, int64_t> events, calls;  // operators on the tape by name, and the calls that they stand for
  Tape tape;
  int64_t peak = 0;  // bytes

  // The calls that have no operator of their own.
  int64_t joined(const std::string& name) const { return calls.at(name) - events.at(name); }
};

RecordedMove record(Move move_rows, int rank, int ranks, int64_t rows, int64_t columns) {
  const MemoryCount counted;
  const auto world = make_fake_communicator(rank, ranks);
  const FakeResults fakes;
  TapeRecorder recorder(*world);
  const at::Tensor result = move_rows(*world, rows, columns);
  RecordedMove move;
  move.tape = recorder.take();
  move.peak = memory_use().peak;
  for (const TapeEvent& event : move.tape.events) {
    const auto* call = std::get_if<TapeOperator>(&event.what);
    if (call == nullptr) continue;
    ++move.events[move.tape.names.at(call->name)];
    move.calls[move.tape.names.at(call->name)] += call->times;
  }
  return move;
}

int64_t parts_of_exchange(const Tape& tape) {
  int64_t parts = 0;
  for (const TapeEvent& event : tape.events) {
    if (const auto* call = std::get_if<TapeExchange>(&event.what))
      parts += std::ssize(call->sends) + std::ssize(call->receives);
  }
  return parts;
}

// Where every rank sends to all others, the operators and the blocks on a tape are as many for 512 ranks as for 8.
TEST(TapeRecorder, X14_EqualCopiesOfAnExchangeAreOneOperator) {
  const RecordedMove few = record(rows_to_columns, 3, 8, 8 * 16, 8 * 64);
  const RecordedMove many = record(rows_to_columns, 3, 512, 512 * 16, 512 * 64);

  EXPECT_EQ(few.events, many.events);
  EXPECT_EQ(few.tape.events.size(), many.tape.events.size());
  EXPECT_EQ(parts_of_exchange(few.tape), 2 * 7);
  EXPECT_EQ(parts_of_exchange(many.tape), 2 * 511);
  EXPECT_EQ(few.joined("aten::copy_"), 2 * 6);
  EXPECT_EQ(many.joined("aten::copy_"), 2 * 510) << "of what is sent, and of what arrives, all but one each";
}

// Without a listener each copy is made. A tape counts the same calls, messages and bytes, and the peak is the same.
void expect_counted_as_made(Move move_rows, const char* joined, int rank, int ranks) {
  // The sizes of blocks differ by one.
  constexpr int64_t kRows = 100, kColumns = 2003;
  const MemoryCount counted;
  const auto world = make_fake_communicator(rank, ranks);
  const FakeResults fakes;
  Recorder recorder(1);
  const at::Tensor result = move_rows(*world, kRows, kColumns);
  const RankRecord made_alone = recorder.stop();
  const int64_t peak = memory_use().peak;
  std::map<std::string, int64_t> made;
  for (const ProfileEvent& event : made_alone.events) {
    if (event.kind == EventKind::kOperator) ++made[made_alone.names.at(event.name)];
  }

  const RecordedMove move = record(move_rows, rank, ranks, kRows, kColumns);

  EXPECT_TRUE(is_fake(result));
  EXPECT_EQ(move.peak, peak);
  EXPECT_EQ(peak_of(move.tape).bytes, peak);
  for (const auto& [name, calls] : move.calls) EXPECT_EQ(calls, made[name]) << name;
  EXPECT_LT(move.events.at(joined), move.calls.at(joined));
  EXPECT_EQ(total(counts_of(move.tape, rank)).bytes, world->stats().total().bytes);
  EXPECT_EQ(total(counts_of(move.tape, rank)).messages, world->stats().total().messages);
}

TEST(TapeRecorder, X14_EqualCopiesCountAsThoseThatAreMade) {
  constexpr int kRanks = 6;
  for (int rank = 0; rank < kRanks; ++rank) {
    SCOPED_TRACE(rank);
    expect_counted_as_made(rows_to_columns, "aten::copy_", rank, kRanks);
    expect_counted_as_made(add_back_reversed, "aten::flip", rank, kRanks);
  }
}

// The first 40 of 512 ranks have a row, or a column. Another rank sends its block and gets none of the result, or has
// no block and gets a part of each.
TEST(TapeRecorder, X14_RanksWithoutABlockJoinEqualCopies) {
  constexpr int64_t kFew = 40, kMany = 512 * 64;
  const RecordedMove sends = record(rows_to_columns, 500, 512, kMany, kFew);
  const RecordedMove receives = record(rows_to_columns, 500, 512, kFew, kMany);

  EXPECT_EQ(sends.joined("aten::copy_"), kFew - 1);
  EXPECT_EQ(receives.joined("aten::copy_"), kFew - 1);
}

// A small result is computed, of zeros in the place of messages: each copy is made.
TEST(TapeRecorder, X14_ResultsThatAreComputedTakeEachCopy) {
  const auto world = make_fake_communicator(3, 8);
  const FakeResults fakes;
  TapeRecorder recorder(*world);

  const at::Tensor result = rows_to_columns(*world, 16, 16);

  EXPECT_EQ(result.sizes(), (std::vector<int64_t>{4, 16, 2}));
  const Tape tape = recorder.take();
  for (const TapeEvent& event : tape.events) {
    if (const auto* call = std::get_if<TapeOperator>(&event.what)) EXPECT_EQ(call->times, 1);
  }
}

// The time of a step on the host leaves out the search for shapes, which takes 50 ms here.
TEST(StepTapes, X14_TheTimeOfTheHostLeavesFakeCallsOut) {
  const auto world = make_fake_communicator(0, 2);
  const ReplacedShapeRule slow("aten::relu", [](ShapeCall& call) {
    const double begin = seconds_of(ClockOf::kThread);
    while (seconds_of(ClockOf::kThread) - begin < 0.05) {
    }
    call.give_like(call.tensor(0));
  });
  const at::Tensor x = make_fake({100, 100}, at::kFloat);
  const int optimizer = 0;

  const StepTapes tapes(
      *world, 1, [] {}, {}, 3);
  double longest = 0, begin = seconds_of(ClockOf::kThread);
  for (int step = 0; step < 4; ++step) {
    at::relu(x);
    const double before = seconds_of(ClockOf::kThread);
    note_optimizer_step(&optimizer);
    longest = std::max(longest, seconds_of(ClockOf::kThread) - std::exchange(begin, before));
  }

  EXPECT_GT(tapes.host_seconds(), 0);
  EXPECT_LE(tapes.host_seconds(), longest - 0.05);
}

// Calls with the blocks of their tensors, where the host is timed.
TEST(StepTapes, X14_AStepIsKeptInItsOrder) {
  const MemoryCount counted;
  const auto world = make_fake_communicator(0, 2);
  const FakeResults fakes;
  const at::Tensor x = make_fake({100, 100}, at::kFloat);
  const int optimizer = 0;

  StepTapes tapes(
      *world, 1, [] {}, {}, 1);
  {
    const at::Tensor y = at::relu(x).narrow(0, 2, 50);
    at::neg(y);
  }
  note_optimizer_step(&optimizer);
  tapes.take();
  const StepCalls step = tapes.take_step();

  std::vector<std::string> what;
  std::vector<StepCalls::Event> calls;
  for (const StepCalls::Event& event : step.events) {
    const bool is_call = event.kind == StepCalls::Event::kCalled;
    if (is_call) calls.push_back(event);
    what.push_back(is_call
                       ? event.call.name.name
                       : (event.kind == StepCalls::Event::kMade ? "made " : "freed ") + std::to_string(event.block));
  }
  EXPECT_THAT(what, ElementsAre("made 1", "aten::relu", "made 2", "aten::neg", "freed 2", "freed 1"));
  EXPECT_EQ(step.events[0].bytes, 100 * 100 * 4);
  ASSERT_EQ(calls.size(), 2U);
  ASSERT_THAT(step.before, ElementsAre(Pair(calls[0].arguments.at(0).block, 100 * 100 * 4)));
  EXPECT_EQ(calls[0].results.at(0).block, 1U);
  EXPECT_EQ(calls[1].arguments.at(0).block, 1U);
  EXPECT_EQ(calls[1].arguments.at(0).offset, 2 * 100);
  EXPECT_EQ(calls[1].results.at(0).block, 2U);
  EXPECT_EQ(calls[0].call.key, "aten::relu f32[100,100] > f32[100,100]");
}

// Events are counted up to a limit. A first step that has more of them is an error only if it is the one to look at.
TEST(StepTapes, X14_AStepWithTooManyEventsIsAnErrorWhereNoneFollows) {
  const auto world = make_fake_communicator(0, 2);
  const at::Tensor x = at::ones({8});
  const int optimizer = 0;
  const auto take = [&](int steps) {
    StepTapes tapes(*world, 3, [] {});
    for (int64_t event = 0; event <= TapeRecorder::kMostEvents; ++event) at::detach(x);
    note_optimizer_step(&optimizer);
    for (int step = 1; step < steps; ++step) {
      at::relu(x);
      note_optimizer_step(&optimizer);
    }
    return tapes.take();
  };

  EXPECT_TRUE(take(2).whole);
  try {
    take(1);
    ADD_FAILURE() << "a part of a step was returned";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("a tape of one step: more than 4000000 events"));
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_tape
