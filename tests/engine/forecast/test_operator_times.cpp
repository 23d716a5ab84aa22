// SPDX-License-Identifier: Apache-2.0
// Times of operators that plans measure on this host: measured once, kept in a file, and what is refused of it.
#include "moonhalo/engine/forecast/operator_times.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "moonhalo/engine/forecast/least_time.h"
#include "moonhalo/engine/forecast/repeated_calls.h"
#include "tests/support/folder.h"

namespace moonhalo::test_operator_times {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;
using Json = nlohmann::ordered_json;

constexpr HostShare kAlone{1, 1}, kBeside{2, 1};

OperatorCall product(int64_t size) {
  const at::Tensor x = at::empty({size, size}, at::device(at::kMeta));
  return {"aten::mm f32[" + std::to_string(size) + "]", {"aten::mm", ""}, {x, x}};
}

// The memory that an operator of this test has seen, and its calls while an earlier result lived.
struct Seen {
  std::set<const void*> arguments, results;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> made;
  int64_t calls = 0, beside_results = 0;
};
Seen& seen() {
  static Seen all;
  return all;
}

at::Tensor noted(const at::Tensor& x) {
  Seen& all = seen();
  ++all.calls;
  all.beside_results += std::any_of(all.made.begin(), all.made.end(), [](const auto& one) { return !one.expired(); });
  at::Tensor result = at::zeros_like(x);
  all.arguments.insert(x.data_ptr());
  all.results.insert(result.data_ptr());
  all.made.push_back(result.storage().getWeakStorageImpl());
  return result;
}

OperatorCall noted_call(int64_t elements) {
  return {"noted", {"moonhalo_test_operator_times::noted", ""}, {at::empty({elements}, at::device(at::kMeta))}};
}

// Each call takes 0.2 ms longer than the one before.
at::Tensor slower(const at::Tensor& x) {
  static int calls = 0;
  const double begin = seconds_of(ClockOf::kThread), wanted = 2e-4 * ++calls;
  while (seconds_of(ClockOf::kThread) - begin < wanted) {
  }
  return x.clone();
}

TORCH_LIBRARY(moonhalo_test_operator_times, library) {
  library.def("noted(Tensor x) -> Tensor");
  library.def("slower(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(moonhalo_test_operator_times, CPU, library) {
  library.impl("noted", noted);
  library.impl("slower", slower);
}

std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

class OperatorTimesFile : public ::testing::Test {
 protected:
  OperatorTimesFile() : path_(OperatorTimes::path_beside(folder_ / "machine.json")) {}

  Json json() const { return Json::parse(std::ifstream(path_)); }
  void write(const std::string& text) const { std::ofstream(path_) << text; }
  std::string refused() const {
    return refusal_of([this] { OperatorTimes{path_}; });
  }

  const moonhalo::testing::Folder folder_;
  const std::string path_;
};

TEST_F(OperatorTimesFile, X14_LiesBesideTheMachineFile) {
  EXPECT_EQ(path_, folder_ / "machine.operators.json");
  EXPECT_EQ(OperatorTimes::path_beside("machine"), "machine.operators.json");
}

TEST_F(OperatorTimesFile, X14_IsMeasuredOncePerOperatorAndShare) {
  {
    OperatorTimes times(path_);
    const OperatorTimes::Report first = times.measure({product(32), product(64)}, kAlone, 1e-3);
    EXPECT_EQ(first.measured, 2);
    EXPECT_EQ(first.known, 0);
    times.save();
  }
  const Json before = json();
  OperatorTimes times(path_);
  EXPECT_EQ(times.other_host(), "");

  const OperatorTimes::Report again = times.measure({product(32), product(64), product(96)}, kAlone, 1e-3);
  const OperatorTimes::Report beside = times.measure({product(32)}, kBeside, 1e-3);

  EXPECT_EQ(again.known, 2);
  EXPECT_EQ(again.measured, 1);
  EXPECT_EQ(beside.known, 0);
  EXPECT_EQ(beside.measured, 1);
  times.save();
  EXPECT_EQ(json()["operators"]["1x1"][product(64).key], before["operators"]["1x1"][product(64).key]);
  Machine machine;
  machine.operators["of another share"] = {{1, 1.0}};
  times.give_to(machine, kBeside);
  ASSERT_THAT(machine.operators, ElementsAre(Key(product(32).key)));
  const auto& [cores, seconds] = *machine.operators.begin()->second.begin();
  EXPECT_EQ(cores, 2);
  EXPECT_EQ(seconds, json()["operators"]["2x1"][product(32).key].get<double>());
  times.give_to(machine, {4, 1});
  EXPECT_TRUE(machine.operators.empty());
}

TEST_F(OperatorTimesFile, X14_IsMeasuredAgainOnceWhereThatIsWanted) {
  {
    OperatorTimes times(path_);
    times.measure({product(32), product(64)}, kAlone, 1e-3);
    times.save();
  }
  Json old = json();
  for (const OperatorCall& call : {product(32), product(64)}) old["operators"]["1x1"][call.key] = 3000.0;
  write(old.dump());
  OperatorTimes times(path_);

  times.measure_again();
  const OperatorTimes::Report first = times.measure({product(32)}, kAlone, 1e-3);
  const OperatorTimes::Report second = times.measure({product(32)}, kAlone, 1e-3);
  times.save();

  EXPECT_EQ(first.measured, 1);
  EXPECT_EQ(second.measured, 0);
  EXPECT_LT(json()["operators"]["1x1"][product(32).key].get<double>(), 1);
  EXPECT_EQ(json()["operators"]["1x1"][product(64).key], 3000.0) << "of another script";
  Machine machine;
  times.give_to(machine, kAlone);
  EXPECT_THAT(machine.operators, ElementsAre(Key(product(32).key)));
}

// Such times stay in the file with a mark, until they are measured once more.
TEST_F(OperatorTimesFile, X14_TimesOfAMachineThatWasNotQuietAreKnown) {
  {
    OperatorTimes times(path_);
    times.measure({product(32), product(64)}, kAlone, 1e-3);
    times.save();
  }
  OperatorCall slower = noted_call(4);
  slower.name.name = "moonhalo_test_operator_times::slower";
  OperatorTimes never_quiet(folder_ / "other.json");
  EXPECT_FALSE(never_quiet.measure({slower}, kAlone, 1e-3).stable);
  EXPECT_EQ(never_quiet.unsteady({slower}, kAlone), 1);

  Json marked = json();
  marked["not quiet"] = {{"1x1", {product(32).key, "of another script"}}};
  write(marked.dump());
  const OperatorTimes times(path_);

  EXPECT_EQ(times.unsteady({product(32), product(64)}, kAlone), 1);
  EXPECT_EQ(times.unsteady({product(64)}, kAlone), 0);
  EXPECT_EQ(times.unsteady({product(32)}, kBeside), 0);
  times.save();
  EXPECT_EQ(json()["not quiet"]["1x1"].size(), 2U);
}

// The second of two calls gets what the first returns.
StepCalls two_calls(const OperatorCall& call, int64_t bytes) {
  using Event = StepCalls::Event;
  const Event first{.call = call, .arguments = {{9}}, .results = {{1}}};
  const Event second{.call = call, .arguments = {{1}}, .results = {{2}}};
  return {{first, second}, {{9, bytes}}};
}

TEST_F(OperatorTimesFile, X14_AStepIsMeasuredInItsOrder) {
  const OperatorCall call = noted_call(1 << 10);
  OperatorTimes times(path_);
  seen() = {};

  const OperatorTimes::Report first = times.measure_step({call}, two_calls(call, 4 << 10), kAlone, 1e-3);
  EXPECT_GT(seen().beside_results, 5) << "the result of the first call lives while the second one runs";
  const OperatorTimes::Report again = times.measure_step({call}, two_calls(call, 4 << 10), kAlone, 1e-3);

  EXPECT_EQ(first.measured, 1);
  EXPECT_EQ(first.known, 0);
  EXPECT_EQ(again.measured, 0);
  EXPECT_EQ(again.known, 1);
  Machine machine;
  times.give_to(machine, kAlone);
  EXPECT_THAT(machine.operators, ElementsAre(Key(call.key)));
}

// A step takes more memory than it may, or was not recorded.
TEST_F(OperatorTimesFile, X14_OperatorsOfALargeStepAreMeasuredAlone) {
  const OperatorCall call = noted_call((2 << 20) + 1);  // alone, its result is freed before the next call
  for (const StepCalls& step : {two_calls(call, host_memory() / 4 + 1), StepCalls{}}) {
    OperatorTimes times(path_);
    seen() = {};
    EXPECT_EQ(times.measure_step({call}, step, kAlone, 1e-3).measured, 1);
    EXPECT_EQ(seen().beside_results, 0);
  }
}

TEST_F(OperatorTimesFile, X14_OperatorsOfAStepThatFailHaveNoTime) {
  OperatorCall other = product(32);
  other.arguments[1] = at::empty({5, 5}, at::device(at::kMeta));
  const StepCalls step{{{.call = other, .arguments = {{8}, {9}}, .results = {{1}}}}, {{8, 4096}, {9, 100}}};
  OperatorTimes times(path_);

  const OperatorTimes::Report report = times.measure_step({other}, step, kAlone, 1e-3);

  EXPECT_EQ(report.measured, 0);
  EXPECT_THAT(report.failed, ElementsAre(AllOf(HasSubstr(other.key + ": "), HasSubstr("cannot be multiplied"))));
}

// An operator that fails never has a time. The others have theirs, so the step is not repeated for it.
TEST_F(OperatorTimesFile, X14_AStepIsNotRepeatedForOperatorsThatFail) {
  const OperatorCall call = noted_call(1 << 10);
  OperatorCall other = product(32);
  other.arguments[1] = at::empty({5, 5}, at::device(at::kMeta));
  StepCalls step = two_calls(call, 4 << 10);
  step.events.push_back({.call = other, .arguments = {{9}, {9}}, .results = {{3}}});
  OperatorTimes times(path_);
  EXPECT_EQ(times.measure_step({call, other}, step, kAlone, 1e-3).measured, 1);
  seen() = {};

  const OperatorTimes::Report again = times.measure_step({call, other}, step, kAlone, 1e-3);

  EXPECT_EQ(seen().calls, 0);
  EXPECT_EQ(again.known, 1);
  EXPECT_THAT(again.failed, ElementsAre(HasSubstr("cannot be multiplied")));
}

// In a step other memory was used since an operator's own was.
TEST(RepeatedCalls, X14_UseOtherMemory) {
  const OperatorCall call = noted_call(1 << 10);
  const struct {
    int64_t bytes;
    double seconds;
    size_t copies;
  } cases[] = {{8 << 10, 1e-6, 64}, {2 << 20, 1e-6, 8}, {8 << 10, 0.0024, 8}, {16 << 20, 1e-6, 1}, {8 << 10, 1, 1}};
  for (const auto& [bytes, seconds, copies] : cases) {
    seen() = {};
    RepeatedCalls calls(call, bytes, seconds);
    for (size_t i = 0; i < copies; ++i) calls.next();

    EXPECT_EQ(seen().calls, 2 * static_cast<int64_t>(copies) + 1);
    EXPECT_EQ(seen().arguments.size(), copies);
    EXPECT_GE(seen().results.size(), copies);
  }
}

// The limit of memory is for one call.
TEST(RepeatedCalls, X14_LargeResultsAreFreedBeforeTheNextCall) {
  const OperatorCall call = noted_call(1 << 10);
  seen() = {};
  RepeatedCalls large(call, (16 << 20) + 1, 1e-6);
  large.next();
  EXPECT_EQ(seen().calls, 3);
  EXPECT_EQ(seen().beside_results, 0);

  seen() = {};
  const RepeatedCalls small(call, 16 << 20, 1e-6);
  EXPECT_EQ(seen().beside_results, 1);
}

// 8 MiB and as much of a result.
TEST_F(OperatorTimesFile, X14_OneLargeResultIsHeldAtATime) {
  seen() = {};
  OperatorTimes times(path_);
  EXPECT_EQ(times.measure({noted_call((2 << 20) + 1)}, kAlone, 1e-3).measured, 1);
  EXPECT_GE(seen().calls, 5);
  EXPECT_EQ(seen().beside_results, 0);
}

// Each of the ranks that share the host may take 1 MiB: a call that gets 600 KiB and gives as much is left out.
TEST_F(OperatorTimesFile, X14_ResultsCountAsMemory) {
  const HostShare many{host_memory() / 8 >> 20, 1};
  const OperatorTimes times(path_);
  EXPECT_EQ(times.measurable({noted_call(400 << 8)}, many), 1);
  EXPECT_EQ(times.measurable({noted_call(600 << 8)}, many), 0);
}

// Kernels that branch by values take longer for numbers in no order.
TEST(OperatorCall, X14_ArgumentsAreNumbersInNoOrder) {
  const auto meta = [](at::ScalarType dtype) { return at::empty({300, 300}, at::device(at::kMeta).dtype(dtype)); };
  const std::vector<c10::IValue> wanted{meta(at::kFloat),        meta(at::kDouble), meta(at::kHalf),
                                        meta(at::kComplexFloat), meta(at::kLong),   meta(at::kBool)};

  const OperatorCall call{"any", {"aten::any", ""}, wanted};
  const std::vector<c10::IValue> given = with_memory(call), again = with_memory(call);

  for (size_t i = 0; i < 4; ++i) {
    const at::Tensor numbers = at::real(given[i].toTensor().to(at::kComplexDouble));
    EXPECT_GE(numbers.min().item<double>(), 0.25);
    EXPECT_LE(numbers.max().item<double>(), 0.75);
    const double grown = (numbers.diff() > 0).to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(grown, 0.5, 0.02) << given[i].toTensor().scalar_type();
    EXPECT_TRUE(at::equal(given[i].toTensor(), again[i].toTensor()));
  }
  for (size_t i = 4; i < 6; ++i) EXPECT_FALSE(given[i].toTensor().any().item<bool>()) << "they may be indices";
  const OperatorCall scaled{"any", {"aten::any", ""}, {at::empty({}, at::device(at::kMeta).dtype(at::kLong))}};
  EXPECT_EQ(with_memory(scaled)[0].toTensor().item<int64_t>(), 1) << "a program divides by it";
  EXPECT_EQ(bytes_of_tensors(wanted), 300 * 300 * (4 + 8 + 2 + 8 + 8 + 1));
  EXPECT_EQ(bytes_of_tensors(given), bytes_of_tensors(wanted));
}

// Were all of them zero, the kernel would add all gradients to one place, which takes longer.
TEST(OperatorCall, X14_IndicesOfPoolingAreSpread) {
  const auto meta = [](at::IntArrayRef sizes, at::ScalarType dtype) {
    return at::empty(sizes, at::device(at::kMeta).dtype(dtype));
  };
  const at::Tensor pooled = meta({1, 2, 4, 5}, at::kFloat), x = meta({1, 2, 8, 10}, at::kFloat);
  const std::vector<int64_t> two{2, 2}, none{0, 0}, one{1, 1};
  const OperatorCall call{"pooling",
                          {"aten::max_pool2d_with_indices_backward", ""},
                          {pooled, x, two, two, none, one, false, meta({1, 2, 4, 5}, at::kLong)}};
  OperatorCall into = call;
  into.name.overload_name = "grad_input";
  into.arguments.emplace_back(meta({1, 2, 8, 10}, at::kFloat));
  for (const OperatorCall& form : {call, into}) {
    SCOPED_TRACE(form.name);
    const at::Tensor indices = with_memory(form).at(7).toTensor();
    const at::Tensor plane = std::get<0>(at::_unique(indices.select(1, 1)));

    EXPECT_EQ(plane.numel(), 4 * 5);
    EXPECT_GE(plane.min().item<int64_t>(), 0);
    EXPECT_LT(plane.max().item<int64_t>(), 8 * 10);
    EXPECT_EQ(repeat_call(form, with_memory(form)).at(0).toTensor().sizes(), at::IntArrayRef({1, 2, 8, 10}));
  }
}

TEST_F(OperatorTimesFile, X14_OperatorsThatFailHaveNoTime) {
  OperatorCall other = product(32);
  other.arguments[1] = at::empty({5, 5}, at::device(at::kMeta));
  OperatorTimes times(path_);

  EXPECT_EQ(times.measurable({product(32), other}, kAlone), 1);
  const OperatorTimes::Report report = times.measure({other}, kAlone, 1e-3);

  EXPECT_EQ(report.measured, 0);
  EXPECT_THAT(report.failed, ElementsAre(AllOf(HasSubstr(other.key + ": "), HasSubstr("cannot be multiplied"))));
}

TEST_F(OperatorTimesFile, X14_DamageIsOneErrorWithARemedy) {
  OperatorTimes times(path_);
  times.measure({product(32)}, kAlone, 1e-3);
  times.save();
  const std::string whole = json().dump();
  const auto changed = [&whole](const std::function<void(Json&)>& change) {
    Json all = Json::parse(whole);
    change(all);
    return all.dump();
  };
  const struct {
    std::string text, message;
  } damages[] = {
      {"", "it is not one of `moonhalo plan`"},
      {whole.substr(0, whole.size() / 2), "it is not one of `moonhalo plan`"},
      {"[]", "it is not one of `moonhalo plan`"},
      {changed([](Json& all) { all.erase("host"); }), "key 'host' not found"},
      {changed([](Json& all) { all["host"] = 7; }), "it is not one of `moonhalo plan`"},
      {changed([](Json& all) { all.erase("operators"); }), "key 'operators' not found"},
      {changed([](Json& all) { all["operators"]["1x1"] = nullptr; }), "it is not one of `moonhalo plan`"},
      {changed([](Json& all) { all["operators"]["1x1 "] = all["operators"]["1x1"]; }), "the key '1x1 ' must be"},
      {changed([](Json& all) { all["operators"]["0x1"] = Json::object(); }), "the key '0x1' must be COPIESxTHREADS"},
      {changed([](Json& all) { all["operators"]["1x1"]["aten::mm f32[32]"] = -1e-3; }),
       "'aten::mm f32[32]' of 1x1: expected seconds, a number from 0 to 3600\n  have  -0.001"},
      {changed([](Json& all) { all["operators"]["1x1"]["aten::mm f32[32]"] = "1 ms"; }), "have  \"1 ms\""},
      {changed([](Json& all) {
         all["not quiet"] = {{"1x1", 7}};
       }),
       "it is not one of `moonhalo plan`"},
  };
  EXPECT_EQ((write(whole), refused()), "no error");
  for (const auto& [text, message] : damages) {
    write(text);
    EXPECT_THAT(refused(), AllOf(HasSubstr("operators file '" + path_ + "': "), HasSubstr(message),
                                 HasSubstr("\n  have  "), HasSubstr("\n  fix   remove the file: it is measured again")))
        << text;
  }
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  EXPECT_THAT(refused(), HasSubstr("it is not one of `moonhalo plan`")) << "a folder";
}

// Another processor, number of cores or version of LibTorch: the times are not those of this host.
TEST_F(OperatorTimesFile, X14_TimesOfAnotherHostAreMeasuredAgain) {
  OperatorTimes here(path_);
  here.measure({product(32)}, kAlone, 1e-3);
  here.save();
  Json all = json();
  const std::string host = all["host"];
  EXPECT_THAT(host, AllOf(HasSubstr(" cores, LibTorch "), HasSubstr(processor_model())));
  all["host"] = host + "1";
  all["operators"]["1x1"]["aten::mm f32[32]"] = 100;
  write(all.dump());

  OperatorTimes times(path_);

  EXPECT_EQ(times.other_host(), host + "1");
  EXPECT_EQ(times.measure({product(32)}, kAlone, 1e-3).measured, 1);
  times.save();
  EXPECT_EQ(json()["host"], host);
  EXPECT_LT(json()["operators"]["1x1"]["aten::mm f32[32]"].get<double>(), 100);
}

TEST_F(OperatorTimesFile, X14_AFolderThatIsNotThereIsRefused) {
  OperatorTimes times(folder_ / "no/machine.operators.json");
  EXPECT_THAT(refusal_of([&] { times.save(); }), AllOf(HasSubstr("it cannot be written"), HasSubstr("--no-measure")));
}

}  // namespace
}  // namespace moonhalo::test_operator_times
