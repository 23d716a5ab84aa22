// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/profile/recorder.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <optional>
#include <set>

#include "moonhalo/engine/base/as_rank.h"
#include "moonhalo/engine/base/backward_on_this_thread.h"
#include "moonhalo/engine/comm/stats_pause.h"
#include "moonhalo/engine/profile/event_names.h"
#include "moonhalo/engine/profile/gather_records.h"
#include "moonhalo/engine/profile/profiler.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"

namespace moonhalo::testing::test_recorder {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Two modules, a loss, and backward, on a field in blocks.
void train_step(const at::Tensor& x, const at::Tensor& weight) {
  at::Tensor h;
  {
    const InModule net("Net");
    {
      const InModule first("first");
      h = at::matmul(x, weight);
    }
    {
      const InModule second("second");
      h = at::gelu(h);
    }
  }
  const BackwardOnThisThread here;
  h.square().sum().backward();
}

// Returns the records of two steps of `ranks` ranks.
std::vector<RankRecord> record_two_steps(int ranks) {
  std::vector<RankRecord> records(ranks);
  on_ranks(ranks, [&](Communicator& world) {
    const MeshPtr mesh = init_device_mesh(world, "cpu", {ranks}, {"domain"});
    const at::Tensor x = distribute_tensor(make_tensor({7, 4}, 1), mesh, {shard(0)});
    const at::Tensor weight = make_tensor({4, 4}, 2).requires_grad_(true);
    Recorder recorder(1);
    train_step(x, weight);
    recorder.next_step(2);
    train_step(x, weight);
    records[world.rank()] = recorder.stop(true);
  });
  return records;
}

const ProfileSummary::Row* row_of(const ProfileSummary& summary, ProfileBy by, const std::string& name) {
  for (const auto& row : summary.table(by)) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

std::vector<std::string> names_of(const ProfileSummary& summary, ProfileBy by) {
  std::vector<std::string> names;
  for (const auto& row : summary.table(by)) names.push_back(row.name);
  return names;
}

TEST(Recorder, Y13_EventsNestAndHaveTheirModule) {
  for (const RankRecord& record : record_two_steps(2)) {
    int64_t operators = 0, backward = 0;
    for (const ProfileEvent& event : record.events) {
      ASSERT_LE(event.begin, event.end);
      if (event.kind == EventKind::kStep) continue;
      ASSERT_NE(event.parent, ProfileEvent::kNoEvent);
      const ProfileEvent& outer = record.events[event.parent];
      ASSERT_LE(outer.begin, event.begin);
      ASSERT_GE(outer.end, event.end);
      ASSERT_EQ(outer.step, event.step);
      operators += event.kind == EventKind::kOperator ? 1 : 0;
      if (event.kind != EventKind::kBackward || event.value < 0) continue;
      ++backward;
      const ProfileEvent& forward = record.events[event.value];
      EXPECT_EQ(forward.kind, EventKind::kOperator);
      EXPECT_EQ(forward.step, event.step);
      EXPECT_EQ(event.module, forward.module);
      const std::string module = record.modules[event.module].name, function = record.names[event.name];
      if (function == "GeluBackward0") EXPECT_EQ(module, "second");
      if (function == "MmBackward0") EXPECT_EQ(module, "first");
      if (function == "PowBackward0" || function == "SumBackward0") EXPECT_EQ(event.module, 0);
    }
    EXPECT_GT(operators, 10);
    EXPECT_GE(backward, 2 * 4);
  }
}

// Each operator is in the row of a module, or in one that says why it is in none.
TEST(Recorder, Y13_EveryOperatorHasAModuleOrAReason) {
  const std::set<std::string> modules = {"Net", "first", "second"};
  const std::set<std::string> reasons = {"(outside of modules)", "(backward of no module)"};
  for (const RankRecord& record : record_two_steps(3)) {
    const EventNames names(record);
    for (const ProfileEvent& event : record.events) {
      if (!EventNames::is_call(event)) continue;
      const std::string module = names.of_module(event);
      const bool is_check = event.phase == Phase::kCheck;
      EXPECT_TRUE(is_check ? module == "(check of plain tensors)"
                           : (event.module == 0 ? reasons : modules).contains(module))
          << names.of_operator(event) << " in '" << module << "'";
      EXPECT_FALSE(names.of_operator(event).empty());
    }
  }
}

TEST(Recorder, Y13_AModuleWithoutANameHasARowWithOne) {
  Recorder recorder(1);
  {
    const InModule module("");
    at::ones({3}).sum();
  }
  const ProfileSummary summary = summarize({recorder.stop()});

  EXPECT_NE(row_of(summary, ProfileBy::kModule, "(unnamed)"), nullptr);
  EXPECT_EQ(row_of(summary, ProfileBy::kModule, ""), nullptr);
}

// Ranks compare plain tensors more rarely as time goes by, so their time is not the operators' and modules'.
TEST(Profiler, Y13_TheCheckOfPlainTensorsHasARowOfItsOwn) {
  const std::string row = "(check of plain tensors)";
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [&](Communicator& world) {
      const MeshPtr mesh = init_device_mesh(world, "cpu", {ranks}, {"domain"});
      const at::Tensor x = distribute_tensor(make_tensor({7, 4}, 1), mesh, {shard(0)});
      Profiler profiler(world.shared_from_this());
      profiler.start();
      {
        const InModule net("Net");
        at::add(x, make_tensor({4}, 2));
      }
      profiler.stop();

      const ProfileSummary& summary = profiler.summary();
      for (const ProfileBy by : {ProfileBy::kOperator, ProfileBy::kModule}) {
        const auto* found = row_of(summary, by, row);
        ASSERT_EQ(found != nullptr, ranks > 1) << name(by);
        if (found != nullptr) EXPECT_GT(found->blocked, 0) << name(by);
        EXPECT_EQ(row_of(summary, by, ""), nullptr);
      }
      EXPECT_EQ(row_of(summary, ProfileBy::kPhase, "check") != nullptr, ranks > 1);
      EXPECT_EQ(row_of(summary, ProfileBy::kOperator, "(all_gather)"), nullptr);
      const auto* add = row_of(summary, ProfileBy::kOperator, "aten::add");
      ASSERT_NE(add, nullptr);
      EXPECT_EQ(add->blocked, 0);
    });
  }
}

// The bytes of each table are those that the communicators counted.
TEST(Profiler, Y13_BytesAreThoseOfCommStats) {
  for (const int ranks : {1, 2, 3, 4}) {
    on_ranks(ranks, [&](Communicator& world) {
      const MeshPtr mesh = init_device_mesh(world, "cpu", {ranks}, {"domain"});
      const at::Tensor x = distribute_tensor(make_tensor({9, 4}, 1), mesh, {shard(0)});
      const at::Tensor weight = make_tensor({4, 4}, 2).requires_grad_(true);
      Profiler profiler(world.shared_from_this());
      world.reset_stats();
      profiler.start();
      train_step(x, weight);
      const at::Tensor moved = redistribute(x.roll(1, 0), mesh, {shard(1)});
      world.barrier();
      {
        const ScopedStatsPause not_counted;
        moved.sum().item();
      }
      const int64_t sent = world.stats().total().bytes;
      profiler.stop();

      at::Tensor all = at::full({1}, sent, at::kLong);
      world.all_reduce(all);
      for (size_t by = 0; by < profiler.summary().tables.size(); ++by) {
        int64_t bytes = 0;
        for (const auto& row : profiler.summary().tables[by]) bytes += row.bytes;
        EXPECT_EQ(bytes, all.item<int64_t>()) << name(static_cast<ProfileBy>(by));
      }
      if (ranks == 1) return;
      const auto* matmul = row_of(profiler.summary(), ProfileBy::kOperator, "aten::roll");
      ASSERT_NE(matmul, nullptr);
      EXPECT_GT(matmul->bytes, 0);
      EXPECT_GT(matmul->blocked, 0);
      EXPECT_NE(row_of(profiler.summary(), ProfileBy::kOperator, "(barrier)"), nullptr);
    });
  }
}

// Every nanosecond of the steps is in one row of each table.
TEST(Recorder, Y13_SelfTimesAddUpToTheSteps) {
  for (const int ranks : {1, 2, 3}) {
    const ProfileSummary summary = summarize(record_two_steps(ranks));
    EXPECT_EQ(summary.ranks, ranks);
    EXPECT_EQ(summary.steps, (std::vector<int64_t>{1, 2}));
    EXPECT_GT(summary.step_time, 0);
    for (size_t by = 0; by < summary.tables.size(); ++by) {
      int64_t sum = 0;
      for (const auto& row : summary.tables[by]) {
        EXPECT_GE(row.self, 0) << row.name;
        EXPECT_GE(row.total, row.self) << name(static_cast<ProfileBy>(by)) << " " << row.name;
        sum += row.self;
      }
      EXPECT_EQ(sum, summary.step_time) << name(static_cast<ProfileBy>(by));
    }
    EXPECT_EQ(std::accumulate(summary.shares.begin(), summary.shares.end(), int64_t{0}), summary.step_time);
    const auto* net = row_of(summary, ProfileBy::kModule, "Net");
    const auto* first = row_of(summary, ProfileBy::kModule, "first");
    const auto* second = row_of(summary, ProfileBy::kModule, "second");
    ASSERT_TRUE(net != nullptr && first != nullptr && second != nullptr);
    EXPECT_EQ(net->total, net->self + first->total + second->total);
    EXPECT_EQ(first->calls, 2 * ranks);
    const auto modules = names_of(summary, ProfileBy::kModule);
    EXPECT_THAT(modules, Contains("(outside of modules)"));  // the loss
    EXPECT_THAT(modules, Contains("(backward of no module)"));
    const auto* gelu = row_of(summary, ProfileBy::kOperator, "aten::gelu");
    ASSERT_NE(gelu, nullptr);
    EXPECT_EQ(gelu->calls, 2 * ranks);  // of the field; that of the block is within
    std::vector<std::string> phases = {"script", "forward", "backward"};
    if (ranks > 1) phases.emplace_back("check");
    EXPECT_THAT(names_of(summary, ProfileBy::kPhase), ::testing::UnorderedElementsAreArray(phases));
  }
}

TEST(Recorder, Y13_NothingIsRecordedWhenItIsOff) {
  const bool before = hooks_are_on();
  const at::Tensor x = at::ones({3});
  { const Recorder recorder(1); }
  EXPECT_FALSE(before);
  EXPECT_FALSE(hooks_are_on());
  EXPECT_EQ(Recorder::of_this_rank(), nullptr);
  EXPECT_FALSE(at::hasThreadLocalCallbacks());
  const RecordRange range("unseen");
  const InModule module("unseen");
  EXPECT_TRUE(x.sum().defined());
}

TEST(Recorder, Y13_StopsAtItsLargestNumberOfEventsAndSaysSo) {
  const at::Tensor x = at::ones({3});
  Recorder recorder(1, nullptr, 5);
  {
    const RecordRange range("outer");
    for (int i = 0; i < 20; ++i) x.sum();
  }
  recorder.next_step(2);
  const RankRecord record = recorder.stop();

  EXPECT_TRUE(record.full);
  ASSERT_EQ(record.events.size(), 5u);
  for (const ProfileEvent& event : record.events) EXPECT_GE(event.end, event.begin);
  const ProfileSummary summary = summarize({record});
  ASSERT_EQ(summary.notes.size(), 1u);
  EXPECT_THAT(summary.notes[0], HasSubstr("rank 0 stopped recording after 5 events, in step 1"));
  EXPECT_THAT(profile_table(summary, ProfileBy::kOperator), HasSubstr(summary.notes[0]));
}

// A range that is open at both ends of a recording is in no event, or ends with it.
TEST(Recorder, Y13_MayStartAndStopWithinRanges) {
  const at::Tensor x = at::ones({3});
  std::optional<RecordRange> before("begun before");
  Recorder recorder(1);
  std::optional<RecordRange> within("goes on");
  x.sum();
  before.reset();
  recorder.next_step(2);
  x.sum();
  const RankRecord record = recorder.stop(true);
  within.reset();

  EXPECT_THAT(record.names, AllOf(Contains("goes on"), Contains("aten::sum"), Not(Contains("begun before"))));
  int64_t ranges = 0;
  for (const ProfileEvent& event : record.events) ranges += record.names[event.name] == "goes on" ? 1 : 0;
  EXPECT_EQ(ranges, 2);  // one for each step
  EXPECT_EQ(summarize({record}).steps, (std::vector<int64_t>{1, 2}));
}

TEST(Recorder, Y13_StopsAtItsLargestStepAndSaysSo) {
  Recorder recorder(RankRecord::kLastStep);
  at::ones({3}).sum();
  recorder.next_step(RankRecord::kLastStep + 1);
  at::ones({3}).exp();
  const RankRecord record = recorder.stop();

  EXPECT_TRUE(record.full);
  EXPECT_THAT(record.names, AllOf(Contains("aten::sum"), Not(Contains("aten::exp"))));
  EXPECT_THAT(profile_table(summarize({record}), ProfileBy::kOperator), HasSubstr("in step 65535"));
}

// The sessions of a solver's thread are ranks of their own.
TEST(Recorder, Y13_TwoSessionsOfAThreadRecordTheirOwn) {
  RankContext a, b;
  std::optional<Recorder> of_a, of_b;
  RankRecord record_a, record_b;
  {
    const AsRank rank(a);
    of_a.emplace(1);
  }
  {
    const AsRank rank(b);
    of_b.emplace(1);
    at::ones({3}).exp();
  }
  {
    const AsRank rank(a);
    at::ones({3}).tanh();
    record_a = of_a->stop();
    of_a.reset();
  }
  {
    const AsRank rank(b);
    record_b = of_b->stop();
    of_b.reset();
  }

  const auto calls = [](const RankRecord& record, const std::string& op) {
    const ProfileSummary summary = summarize({record});
    const auto* row = row_of(summary, ProfileBy::kOperator, op);
    return row == nullptr ? 0 : row->calls;
  };
  const auto events = [](const RankRecord& record, const std::string& op) {
    return std::count_if(record.events.begin(), record.events.end(),
                         [&](const ProfileEvent& event) { return record.names[event.name] == op; });
  };
  EXPECT_EQ(calls(record_a, "aten::tanh"), 1);
  EXPECT_EQ(events(record_a, "aten::tanh"), 1);
  EXPECT_EQ(calls(record_a, "aten::exp"), 0);
  EXPECT_EQ(events(record_b, "aten::exp"), 1);
  EXPECT_EQ(calls(record_b, "aten::tanh"), 0);
  EXPECT_FALSE(hooks_are_on());
}

TEST(Recorder, Y13_StepsAreThoseOfTheOptimizerThatStepsFirst) {
  std::vector<int64_t> steps, others;
  const int first = 0, second = 0, owner = 0, other = 0;
  watch_steps(&owner, [&](int64_t step) { steps.push_back(step); });
  note_optimizer_step(&first);
  watch_steps(&other, [&](int64_t step) {
    others.push_back(step);
    watch_steps(&other, nullptr);
  });
  for (const int* optimizer : {&second, &first, &second}) note_optimizer_step(optimizer);
  watch_steps(&owner, nullptr);
  note_optimizer_step(&first);

  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(others, (std::vector<int64_t>{1}));
}

TEST(Recorder, Y13_RecordsAndSumsGoThroughBytes) {
  const std::vector<RankRecord> records = record_two_steps(2);
  const ProfileSummary summary = summarize(records);
  std::vector<RankRecord> again;
  for (const RankRecord& record : records) again.push_back(RankRecord::from_bytes(record.to_bytes()));

  EXPECT_EQ(summarize(again).to_json(), summary.to_json());
  EXPECT_EQ(ProfileSummary::from_json(summary.to_json(), "x").to_json(), summary.to_json());
  const std::string bytes = records[0].to_bytes();
  EXPECT_THAT(message_of([&] { RankRecord::from_bytes(bytes.substr(0, bytes.size() / 2)); }), HasSubstr("damaged"));
  EXPECT_THAT(message_of([] { ProfileSummary::from_json("{}", "a/profile.json"); }),
              AllOf(HasSubstr("a/profile.json"), HasSubstr("holds no profile")));
}

TEST(GatherRecords, Y13_ARankThatFailsIsTheErrorOfAll) {
  on_ranks(3, [](Communicator& world) {
    RankRecord mine;
    if (world.rank() == 1) mine.messages.push_back({5, 0, 8, 1});  // of no call
    EXPECT_THAT(message_of([&] { gather_records(world, mine); }), HasSubstr("the record of a rank is damaged"));
    EXPECT_EQ(gather_records(world, RankRecord()).size(), world.rank() == 0 ? 3u : 0u);
  });
}

// A rank of a dry run has its own record alone.
TEST(Profiler, Y13_InAFakeWorldThereIsOneRank) {
  Profiler profiler(make_fake_communicator(2, 5));
  profiler.start();
  at::ones({3}).sum();
  profiler.stop();

  ASSERT_EQ(profiler.records().size(), 1u);
  EXPECT_NE(row_of(profiler.summary(), ProfileBy::kOperator, "aten::sum"), nullptr);
  EXPECT_THAT(profile_table(profiler.summary(), ProfileBy::kOperator), HasSubstr("rank 2 of 5 in a dry run"));
}

TEST(Profiler, Y13_SumsAreTheSameOnAllRanksAndNotCounted) {
  for (const int ranks : {1, 2, 4}) {
    std::vector<std::string> tables(ranks);
    on_ranks(ranks, [&](Communicator& world) {
      Profiler profiler(world.shared_from_this());
      EXPECT_THAT(message_of([&] { profiler.summary(); }), HasSubstr("nothing is recorded yet"));
      profiler.start();
      EXPECT_THAT(message_of([&] { Profiler(world.shared_from_this()).start(); }), HasSubstr("records already"));
      if (world.rank() == 0) at::ones({3}).sum();  // elsewhere nothing
      const int64_t sent = bytes_sent_by_this_thread();
      profiler.stop();
      EXPECT_EQ(bytes_sent_by_this_thread(), sent);
      EXPECT_EQ(profiler.records().size(), world.rank() == 0 ? static_cast<size_t>(ranks) : 0u);
      tables[world.rank()] = profile_table(profiler.summary(), ProfileBy::kOperator);
    });
    for (const std::string& table : tables) EXPECT_EQ(table, tables[0]);
    EXPECT_THAT(tables[0], HasSubstr("aten::sum"));
  }
}

TEST(Profiler, Y13_RecordsTheStepsThatWereRequested) {
  Profiler profiler(make_self_communicator());
  const int optimizer = 0;
  bool done = false;
  profiler.record_steps(2, 3, [&] { done = true; });
  for (int step = 1; step <= 4; ++step) {
    const RecordRange range("step " + std::to_string(step));
    at::ones({3}).sum();
    EXPECT_EQ(profiler.running(), step == 2 || step == 3);
    note_optimizer_step(&optimizer);
    EXPECT_EQ(done, step >= 3);
  }

  EXPECT_EQ(profiler.summary().steps, (std::vector<int64_t>{2, 3}));
  const auto* sum = row_of(profiler.summary(), ProfileBy::kOperator, "aten::sum");
  ASSERT_NE(sum, nullptr);
  EXPECT_EQ(sum->calls, 2);
  EXPECT_THAT(message_of([&] { profiler.record_steps(0, 3, [] {}); }), HasSubstr("steps count from 1"));
  EXPECT_THAT(message_of([&] { profiler.record_steps(1, 65536, [] {}); }), HasSubstr("step 65536 is above 65535"));
  EXPECT_FALSE(profiler.running());
  EXPECT_THAT(message_of([&] { Profiler(make_self_communicator(), nullptr, 0); }), HasSubstr("at most 0 events"));
}

TEST(Profiler, Y13_ComparesTwoProfiles) {
  ProfileSummary before, after;
  before.ranks = after.ranks = 2;
  before.steps = {1, 2};
  after.steps = {1};
  before.tables[0] = {{"aten::mm", 4, 8000000, 8000000}, {"aten::add", 4, 4000000, 4000000}};
  after.tables[0] = {{"aten::mm", 2, 8000000, 8000000}};

  const std::string text = compare_profiles(before, after, ProfileBy::kOperator);

  EXPECT_THAT(text, ::testing::ContainsRegex("aten::mm +2.000 +4.000 +.2.000 +100.0 %"));
  EXPECT_THAT(text, ::testing::ContainsRegex("aten::add +1.000 +0.000 +-1.000 +-100.0 %"));
}

}  // namespace
}  // namespace moonhalo::testing::test_recorder
