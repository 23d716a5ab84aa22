// SPDX-License-Identifier: Apache-2.0
// Replays of a step, to time its operators: the order, the memory, the numbers, and calls that fail.
#include "moonhalo/engine/forecast/step_replay.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <string>
#include <vector>

namespace moonhalo::test_step_replay {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Pair;
using ::testing::SizeIs;
using Event = StepCalls::Event;
using Place = StepCalls::Place;

// A call of this test's operators: its memory, that of its result, and its numbers.
struct Seen {
  const void* memory = nullptr;
  const void* returned = nullptr;
  std::vector<double> numbers = {};
  bool earlier_lives = false;  // what the first call of the replay returned
};
struct Log {
  std::vector<Seen> calls;
  c10::weak_intrusive_ptr<c10::StorageImpl> first{c10::intrusive_ptr<c10::StorageImpl>()};
};
Log& seen() {
  thread_local Log all;
  return all;
}

std::vector<double> numbers_of(const at::Tensor& x) {
  const at::Tensor numbers = x.to(at::kDouble).contiguous();
  return {numbers.const_data_ptr<double>(), numbers.const_data_ptr<double>() + numbers.numel()};
}

at::Tensor see(const at::Tensor& x) {
  at::Tensor result = at::full_like(x, 0.5);
  seen().calls.push_back({x.const_data_ptr(), result.const_data_ptr(), numbers_of(x), !seen().first.expired()});
  return result;
}
at::Tensor begin(const at::Tensor& x) {
  at::Tensor result = see(x);
  seen().first = result.storage().getWeakStorageImpl();
  return result;
}
at::Tensor grow(at::Tensor x) { return x.add_(1); }
at::Tensor give_nan(const at::Tensor& x) { return at::full_like(x, std::nan("")); }
at::Tensor give_short(const at::Tensor& x) { return x.to(at::kFloat8_e4m3fn); }
at::Tensor fail_later(const at::Tensor& x) {
  thread_local int calls = 0;
  TORCH_CHECK(++calls <= 2, "the third call fails");
  return x.clone();
}
// Takes 4 ms for more than one element, else no time.
at::Tensor last(const at::Tensor& x) {
  const double begin = seconds_of(ClockOf::kThread);
  while (x.stride(0) > 1 && seconds_of(ClockOf::kThread) - begin < 4e-3) {
  }
  return x.clone();
}

TORCH_LIBRARY(moonhalo_test_step_replay, library) {
  for (const char* name : {"see", "begin", "give_nan", "give_short", "fail_later", "last"})
    library.def((std::string(name) + "(Tensor x) -> Tensor").c_str());
  library.def("grow(Tensor(a!) x) -> Tensor(a!)");
}
TORCH_LIBRARY_IMPL(moonhalo_test_step_replay, CPU, library) {
  library.impl("see", see);
  library.impl("begin", begin);
  library.impl("grow", grow);
  library.impl("give_nan", give_nan);
  library.impl("give_short", give_short);
  library.impl("fail_later", fail_later);
  library.impl("last", last);
}

at::Tensor meta(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return at::empty(sizes, at::device(at::kMeta).dtype(dtype));
}
Event made(uint32_t block, int64_t bytes) { return {.kind = Event::kMade, .block = block, .bytes = bytes}; }
Event freed(uint32_t block) { return {.kind = Event::kFreed, .block = block}; }
// A call of an operator of this test, whose key is its name.
Event call(const std::string& name, const at::Tensor& x, Place given, uint32_t returned) {
  return {
      .call = {name, {"moonhalo_test_step_replay::" + name, ""}, {x}}, .arguments = {given}, .results = {{returned}}};
}

ReplayTimes replay(const StepCalls& step, const std::unordered_set<std::string>& left_out = {}, int ranks = 1) {
  ReplayTimes found;
  std::mutex mutex;
  run_ranks(
      ranks,
      [&](Communicator& group) {
        seen() = {};
        ReplayTimes mine = replay_step(group, step, left_out, 0, ClockOf::kThread);
        const std::lock_guard lock(mutex);
        found = std::move(mine);
      },
      1);
  return found;
}

// The calls that the last replay of one rank has seen. Each replay has `per_replay` of them.
std::vector<Seen> last_calls(const StepCalls& step, size_t per_replay,
                             const std::unordered_set<std::string>& left_out = {}) {
  std::vector<Seen> found;
  run_ranks(
      1,
      [&](Communicator& group) {
        seen() = {};
        replay_step(group, step, left_out, 0, ClockOf::kThread);
        EXPECT_GE(seen().calls.size(), 6 * per_replay);
        found.assign(seen().calls.end() - static_cast<std::ptrdiff_t>(per_replay), seen().calls.end());
      },
      1);
  return found;
}

// The second call gets two elements of what the first has returned, from the third on.
TEST(StepReplay, X14_CallsGetTheMemoryThatOthersReturned) {
  const StepCalls step{{made(1, 32), call("begin", meta({8}), {9}, 1), made(2, 8), call("see", meta({2}), {1, 3}, 2)},
                       {{9, 32}}};

  const std::vector<Seen> calls = last_calls(step, 2);

  EXPECT_EQ(calls[1].memory, static_cast<const float*>(calls[0].returned) + 3);
  EXPECT_THAT(calls[1].numbers, ElementsAre(0.5, 0.5));
}

TEST(StepReplay, X14_MemoryIsFreedAsInTheStep) {
  const Event first = call("begin", meta({8}), {9}, 1), other = call("see", meta({8}), {9}, 2);
  const StepCalls held{{made(1, 32), first, made(2, 32), other, freed(1)}, {{9, 32}}};
  const StepCalls gone{{made(1, 32), first, freed(1), made(2, 32), other}, {{9, 32}}};

  EXPECT_TRUE(last_calls(held, 2)[1].earlier_lives);
  EXPECT_FALSE(last_calls(gone, 2)[1].earlier_lives);
}

// A block that was there before keeps its numbers. One that is freed in the step is there again in the next.
TEST(StepReplay, X14_MemoryOfBeforeTheStepStays) {
  const StepCalls step{
      {call("grow", meta({4}), {8}, 8), call("see", meta({4}), {8}, 1), call("see", meta({4}), {9}, 2), freed(9)},
      {{8, 16}, {9, 16}}};

  const std::vector<Seen> calls = last_calls(step, 2);

  EXPECT_THAT(calls[0].numbers, Each(Gt(5)));
  EXPECT_THAT(calls[1].numbers, Each(AllOf(::testing::Ge(0.25), ::testing::Le(0.75))));
}

// A message or another kernel writes such a block; integers may be indices.
TEST(StepReplay, X14_WhatNoCallReturnsHasUsualNumbers) {
  const StepCalls step{{made(1, 32), call("begin", meta({8}), {1}, 2), call("see", meta({4}, at::kLong), {1}, 3),
                        call("see", meta({}, at::kLong), {1}, 4), freed(1)}};

  const std::vector<Seen> calls = last_calls(step, 3);

  EXPECT_THAT(calls[0].numbers, Each(AllOf(::testing::Ge(0.25), ::testing::Le(0.75))));
  EXPECT_THAT(calls[1].numbers, Each(0)) << "they may be indices";
  EXPECT_THAT(calls[2].numbers, ElementsAre(1)) << "a program may divide by it";
}

TEST(StepReplay, X14_ResultsThatAreNotFiniteAreReplaced) {
  const StepCalls step{{call("give_nan", meta({8}), {9}, 1), call("see", meta({8}), {1}, 2)}, {{9, 32}}};

  EXPECT_THAT(last_calls(step, 1)[0].numbers, Each(AllOf(::testing::Ge(0.25), ::testing::Le(0.75))));
}

// LibTorch has no kernel that compares float8.
TEST(StepReplay, X14_ResultsOfShortFloatsAreTimed) {
  const StepCalls step{{call("give_short", meta({8}), {9}, 1), call("see", meta({8}, at::kFloat8_e4m3fn), {1}, 2)},
                       {{9, 32}}};

  EXPECT_THAT(last_calls(step, 1)[0].numbers, Each(AllOf(::testing::Ge(0.25), ::testing::Le(0.75))));
}

// Were the indices zero, all of a plane's gradient would be at its first place.
TEST(StepReplay, X14_TheBackwardOfAPoolingGetsItsIndices) {
  const std::vector<int64_t> two{2, 2}, none{0, 0}, one{1, 1};
  const at::Tensor x = meta({1, 1, 4, 4}), pooled = meta({1, 1, 2, 2}), indices = meta({1, 1, 2, 2}, at::kLong);
  Event forward{.call = {"pool", {"aten::max_pool2d_with_indices", ""}, {x, two, two, none, one, false}},
                .arguments = {{9}},
                .results = {{1}, {2}}};
  Event backward{.call = {"back",
                          {"aten::max_pool2d_with_indices_backward", ""},
                          {pooled, x, two, two, none, one, false, indices}},
                 .arguments = {{1}, {9}, {2}},
                 .results = {{3}}};
  const StepCalls step{{forward, backward, call("see", x, {3}, 4)}, {{9, 64}}};

  EXPECT_THAT(last_calls(step, 1)[0].numbers, ::testing::Contains(Gt(0)).Times(4));
}

TEST(StepReplay, X14_CallsThatAreLeftOutAreNotMade) {
  const StepCalls step{{made(1, 32), call("begin", meta({8}), {9}, 1), call("see", meta({8}), {1}, 2)}, {{9, 32}}};

  EXPECT_THAT(last_calls(step, 1, {"begin"}), SizeIs(1));
  EXPECT_THAT(replay(step, {"begin"}).seconds, ElementsAre(Key("see")));
}

// One of two calls takes 4 ms of processor time at least, the other about none; alone is that of the first.
TEST(StepReplay, X14_TheTimeOfAKeyIsTheMeanOfItsCalls) {
  const at::Tensor wide = at::empty_strided({2}, {2}, at::device(at::kMeta));
  const StepCalls step{{call("last", wide, {9}, 1), call("last", meta({2}), {9}, 2)}, {{9, 32}}};

  const double both = replay(step).seconds.at("last"), alone = replay({{step.events[0]}, {{9, 32}}}).seconds.at("last");

  EXPECT_NEAR(both / alone, 0.5, 0.25);
}

// All ranks know of it, and the others have their times.
TEST(StepReplay, X14_CallsThatFailHaveNoTime) {
  const StepCalls step{{call("fail_later", meta({8}), {9}, 1), call("see", meta({8}), {1}, 2)}, {{9, 32}}};

  const ReplayTimes times = replay(step, {}, 2);

  EXPECT_THAT(times.seconds, ElementsAre(Key("see")));
  EXPECT_THAT(times.failed, ElementsAre(Pair("fail_later", HasSubstr("the third call fails"))));
}

// A call of the same shapes may have one: it gets the tensor of the step.
TEST(StepReplay, X14_SparseTensorsAreThoseOfTheStep) {
  const at::Tensor sparse = at::eye(2).to_sparse();
  const Event dense{
      .call = {"sum", {"aten::sum", ""}, {meta({2, 2}), c10::IValue()}}, .arguments = {{9}}, .results = {{1}}};
  Event other = dense;
  other.call.arguments[0] = sparse;

  const ReplayTimes times = replay({{dense, other, call("see", meta({}), {1}, 2)}, {{9, 16}}});

  EXPECT_THAT(times.seconds, ElementsAre(Key("see"), Key("sum")));
  EXPECT_THAT(times.failed, IsEmpty());
}

TEST(StepReplay, X14_ThePeakIsThatOfTheBlocks) {
  const StepCalls step{{made(1, 100), made(2, 50), freed(1), freed(9), made(3, 20), freed(2)}, {{8, 7}, {9, 1000}}};

  EXPECT_EQ(peak_bytes(step), 1157);
  EXPECT_EQ(peak_bytes(StepCalls{}), 0);
}

}  // namespace
}  // namespace moonhalo::test_step_replay
