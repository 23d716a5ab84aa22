// SPDX-License-Identifier: Apache-2.0
// Files of machines: written, read, checked; and those of configs/machines.
#include "moonhalo/engine/forecast/machine.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "moonhalo/engine/base/usable_cores.h"
#include "moonhalo/engine/forecast/calibrate.h"
#include "tests/support/folder.h"

namespace moonhalo::test_machine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

const std::filesystem::path kFolder = std::filesystem::path(__FILE__).parent_path() / "../../../configs/machines";

constexpr const char* kText = R"({
  // Comments are allowed, as in configurations.
  "name": "this machine", "made": "2026-11-27", "measured": true,
  "host": {"cores": 2, "memory": 24e9, "base_rss": 186e6, "mpi_rss": 15e6, "slice": 3e-3},
  "device": {"kind": "cpu", "flops": {"convolution": 52e9, "product": {"float32": 100e9, "float64": 50e9}},
             "bandwidth": [[4e6, 21e9], [1e12, 12.5e9]], "launch": 2e-6, "jitter": 0.02},
  "neighbours": {"2": {"convolution": 1.15, "stream": 1.25}},
  "levels": [{"name": "host", "ranks": 8, "latency": 4e-6, "bandwidth": 19e9, "shared": true},
             {"name": "island", "ranks": 512, "latency": 5e-6, "bandwidth": 50e9},
             {"name": "all", "latency": 8e-6, "gap": 1e-6, "bandwidth": 25e9}],
  "verbs": {"threads": {"2": {"all_reduce": [[4, 1.3e-6], [262144, 36e-6]]}}},
  "operators": {"aten::mm f32[2,2]": {"1": 1.1e-3, "2": 1.3e-3}},
  "sources": {"device.launch": "measured", "levels.island.bandwidth": "its data sheet"}
})";

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

std::string changed(const std::string& from, const std::string& to) {
  std::string text = kText;
  const size_t at = text.find(from);
  if (at == std::string::npos) throw std::runtime_error("no '" + from + "' in the file");
  return text.replace(at, from.size(), to);
}

TEST(MachineFile, X14_IsReadAndWritten) {
  const Machine machine = parse_machine(kText, "a.json");

  EXPECT_EQ(machine.host.cores, 2);
  EXPECT_EQ(machine.host.slice, 3e-3);
  EXPECT_EQ(machine.memory_of_backend("mpi"), 15e6);
  EXPECT_EQ(machine.memory_of_backend("tcp"), 0);
  EXPECT_EQ(parse_machine(changed(", \"slice\": 3e-3", ""), "a.json").host.slice, 4e-3);  // the default
  EXPECT_EQ(machine.flops("product"), 100e9);
  EXPECT_EQ(machine.flops("product", "float64"), 50e9);
  EXPECT_EQ(machine.flops("product", "bfloat16"), 50e9);  // not there: the slowest
  EXPECT_EQ(machine.flops("convolution", "float64"), 52e9);
  EXPECT_EQ(machine.flops("attention"), 0);
  EXPECT_EQ(machine.levels[2].gap, 1e-6);
  EXPECT_TRUE(machine.levels[0].shared);
  EXPECT_EQ(machine.operators.at("aten::mm f32[2,2]").at(2), 1.3e-3);
  const std::string again = to_json(machine);
  EXPECT_EQ(to_json(parse_machine(again, "b.json")), again);
  EXPECT_EQ(Json::parse(again)["verbs"]["threads"]["2"]["all_reduce"][1][0], 262144);
}

TEST(MachineFile, X14_MistakesAreNamed) {
  const struct {
    std::string text, message;
  } mistakes[] = {
      {"{", "it is not JSON"},
      {changed("\"flops\"", "\"flop\""), "device: unknown key 'flop'; did you mean 'flops'?"},
      {changed("\"convolution\": 52e9", "\"convolutions\": 52e9"),
       "device.flops: unknown key 'convolutions'; did you mean 'convolution'?"},
      {changed("\"float64\": 50e9", "\"double\": 50e9"), "device.flops.product: unknown key 'double'"},
      {changed("\"cores\": 2", "\"cores\": 0"), "host.cores: expected a number from 1"},
      {changed("\"cores\": 2", "\"cores\": 2.5"), "host.cores: expected an integer, found number"},
      {changed("\"cores\": 2, ", ""), "host: the key 'cores' is missing"},
      {changed("\"slice\": 3e-3", "\"slice\": 2"), "host.slice: expected a number from 0 to 1, found 2"},
      {changed("2e-6", "\"2 us\""), "device.launch: expected a number, found string"},
      {changed("2e-6", "20"), "device.launch: expected a number from 0 to 1, found 20"},
      {changed("0.02", "-0.02"), "device.jitter: expected a number from 0 to 1, found -0.02"},
      {changed("[1e12, 12.5e9]", "[1e6, 12.5e9]"), "device.bandwidth: sizes must grow"},
      {changed("[1e12, 12.5e9]", "[1e12]"), "device.bandwidth: expected a pair [size, value], found array"},
      {changed("\"kind\": \"cpu\"", "\"kind\": \"gpu\""), "device.kind: unknown kind 'gpu'"},
      {changed("{\"2\": {\"conv", "{\"two\": {\"conv"), "neighbours: the key 'two' must be an integer of at least 1"},
      {changed("\"threads\": {\"2\"", "\"thread\": {\"2\""), "verbs: unknown key 'thread'; did you mean 'threads'?"},
      {changed("\"all_reduce\"", "\"allreduce\""),
       "verbs.threads.2: unknown key 'allreduce'; did you mean 'all_reduce'?"},
      {changed("\"ranks\": 8, ", ""), "levels[0]: the key 'ranks' is missing"},
      {changed("\"ranks\": 512", "\"ranks\": 500"), "levels[1].ranks: expected a multiple of the level before"},
      {changed("\"name\": \"all\"", "\"name\": \"all\", \"ranks\": 4096"),
       "levels[2].ranks: the last level has all ranks"},
      {changed("\"shared\": true", "\"shared\": 1"), "levels[0].shared: expected true or false, found number"},
      {changed("\"device.launch\":", "\"device.lunch\":"),
       "sources: there is no figure 'device.lunch'; did you mean 'device.launch'"},
      {changed("\"levels\"", "\"level\""), "unknown key 'level'; did you mean 'levels'?"},
  };
  for (const auto& [text, message] : mistakes) {
    EXPECT_THAT(message_of([&text = text] { parse_machine(text, "my.json"); }),
                AllOf(HasSubstr("machine file 'my.json': "), HasSubstr(message), HasSubstr("\n  have  "),
                      HasSubstr("\n  fix   ")));
  }
}

TEST(MachineFile, X14_MissingFilesSayWhatThereIs) {
  EXPECT_THAT(message_of([] { read_machine("h10"); }),
              AllOf(HasSubstr("machine file 'h10': there is no such file"), HasSubstr("did you mean 'h100'"),
                    HasSubstr("machines a100, epyc, h100"), HasSubstr("run `moonhalo calibrate h10`")));
  EXPECT_THAT(message_of([] { write_machine({}, "/proc/no/such/folder/m.json"); }),
              AllOf(HasSubstr("it cannot be written"), HasSubstr("\n  fix   ")));
}

TEST(MachineFile, X14_AFileThatCannotBeReplacedLeavesNothing) {
  const testing::Folder folder;
  std::filesystem::create_directory(folder / "m.json");
  EXPECT_THAT(message_of([&] { write_machine({}, folder / "m.json"); }),
              AllOf(HasSubstr("it cannot be written\n  have  Is a directory"), HasSubstr("\n  fix   ")));
  EXPECT_FALSE(std::filesystem::exists(folder / "m.json.unfinished"));
}

TEST(MachineFile, X14_OtherCoresAreAnError) {
  Machine machine = parse_machine(kText, "a.json");
  machine.host.cores = usable_core_count();
  check_is_this_host(machine, "a.json");
  machine.host.cores += 1;
  EXPECT_THAT(
      message_of([&] { check_is_this_host(machine, "a.json"); }),
      AllOf(HasSubstr("it was measured on " + std::to_string(machine.host.cores) + " cores, this process may use "),
            HasSubstr("run `moonhalo calibrate FILE` here")));
  machine.host.processor = processor_model();
  EXPECT_TRUE(is_bound_to_part(machine, 2));
  EXPECT_FALSE(is_bound_to_part(machine, 1)) << "no launcher has bound this process";
  machine.measured = false;
  EXPECT_FALSE(is_bound_to_part(machine, 2));
  EXPECT_THAT(message_of([&] { check_is_this_host(machine, "a.json"); }), HasSubstr("it was not measured"));
}

TEST(MachineFile, X14_AFolderIsRefusedAndAWrongPathIsKnownBeforehand) {
  const testing::Folder folder;
  const std::string path = folder / "m.json";
  EXPECT_THAT(message_of([&] { read_machine(folder / ""); }),
              AllOf(HasSubstr("it is a folder"), HasSubstr("name the file in it"), HasSubstr("h100")));
  check_machine_is_writable(path);
  EXPECT_TRUE(folder.names().empty());
  EXPECT_THAT(message_of([&] { check_machine_is_writable(folder / "no/m.json"); }),
              AllOf(HasSubstr("it cannot be written"), HasSubstr("\n  fix   ")));
  EXPECT_THAT(message_of([&] { check_machine_is_writable(folder / ""); }), HasSubstr("a folder of that name"));
}

// Copies of the same work beside each other cannot make it faster.
TEST(MachineFile, X14_NeighboursThatMakeWorkFasterAreNoise) {
  Machine machine = parse_machine(kText, "a.json");
  machine.neighbours = {{2, {{"product", 0.95}, {"stream", 1.3}}}};
  EXPECT_TRUE(neighbours_are_plausible(machine));
  machine.neighbours[2]["product"] = 0.9;
  EXPECT_FALSE(neighbours_are_plausible(machine));
}

// Two threads share a core for 0.1 s, and each of 126 others is interrupted once.
TEST(Calibration, X14_TheSliceIsTheMedianGapByLength) {
  std::vector<double> gaps(126, 2.2e-4);
  gaps.insert(gaps.begin() + 50, 25, 4e-3);
  EXPECT_EQ(slice_of_gaps(gaps).seconds, 4e-3);
  EXPECT_TRUE(slice_of_gaps(gaps).stable);
  EXPECT_EQ(slice_of_gaps({4e-3, 4e-3}).seconds, 0);
  EXPECT_TRUE(slice_of_gaps({}).stable);
  EXPECT_EQ(slice_of_gaps({2, 2, 2}).seconds, 1);
}

// Other programs have the core in between: gaps of one slice, and of several.
TEST(Calibration, X14_GapsOfABusyMachineAreNotStable) {
  const MeasuredSlice busy = slice_of_gaps({3e-3, 3e-3, 3e-3, 3e-3, 3e-3, 12e-3, 12e-3});
  EXPECT_EQ(busy.seconds, 12e-3);
  EXPECT_FALSE(busy.stable);
  EXPECT_TRUE(slice_of_gaps({3e-3, 3e-3, 3e-3, 5e-3, 5e-3}).stable);
}

// Every number has a source: its own, or that of what it is in.
void expect_sources(const Json& value, const std::string& path, const Json& sources, bool has_source) {
  has_source = has_source || sources.contains(path);
  if (value.is_number()) EXPECT_TRUE(has_source) << "no source of " << path;
  if (value.is_object()) {
    for (const auto& [key, inner] : value.items())
      expect_sources(inner, path.empty() ? key : path + "." + key, sources, has_source);
  }
  if (!value.is_array()) return;
  for (const Json& inner : value) {
    const bool has_name = inner.is_object() && inner.contains("name");
    expect_sources(inner, has_name ? path + "." + inner["name"].get<std::string>() : path, sources, has_source);
  }
}

TEST(WrittenMachines, X14_AreValidAndHaveASourceForEachFigure) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    SCOPED_TRACE(entry.path().filename());
    const Machine machine = read_machine(entry.path().string());
    EXPECT_FALSE(machine.measured);
    EXPECT_THAT(machine.comment, ::testing::StartsWith("Written, not measured: "));
    std::ostringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    const Json file = Json::parse(text.str());
    expect_sources(file, "", file["sources"], false);
    ++files;
  }
  EXPECT_EQ(files, 3);
  EXPECT_EQ(read_machine("h100").name, "h100");  // by its name alone
}

TEST(MachineRates, AreLookedUp) {
  const Machine machine = parse_machine(kText, "a.json");

  EXPECT_EQ(machine.bandwidth(1e6), 21e9);
  EXPECT_EQ(machine.bandwidth(5e6), 12.5e9);
  EXPECT_EQ(machine.bandwidth(1e15), 12.5e9);
  EXPECT_DOUBLE_EQ(machine.slowdown("stream", 1), 1);
  EXPECT_DOUBLE_EQ(machine.slowdown("stream", 1.5), 1.125);
  EXPECT_DOUBLE_EQ(machine.slowdown("stream", 64), 1.25);
  EXPECT_DOUBLE_EQ(machine.slowdown("attention", 2), 1);
  EXPECT_EQ(machine.level_of(0, 7), 0U);
  EXPECT_EQ(machine.level_of(7, 8), 1U);
  EXPECT_EQ(machine.level_of(511, 512), 2U);
  EXPECT_EQ(machine.ranks_of_part(0, 4), 4);
  EXPECT_EQ(machine.ranks_of_part(2, 4096), 4096);
}

TEST(MachineRates, TablesAreLinearAndGrowBeyondTheirEnd) {
  const SizeTable table{{10, 1}, {20, 3}, {40, 4}};
  EXPECT_DOUBLE_EQ(at_size(table, 1), 1);
  EXPECT_DOUBLE_EQ(at_size(table, 15), 2);
  EXPECT_DOUBLE_EQ(at_size(table, 30), 3.5);
  EXPECT_DOUBLE_EQ(at_size(table, 80), 6);
  EXPECT_DOUBLE_EQ(at_size({{10, 5}, {20, 4}}, 40), 4);
  EXPECT_DOUBLE_EQ(at_size({{10, 5}}, 40), 5);
}

// The numbers themselves are not tested: the machine that runs tests is busy.
TEST(Calibration, X14_GivesAFileThatIsRead) {
  const testing::Folder folder;
  std::vector<std::string> steps;
  const Machine measured = calibrate_host(0.02, [&](const std::string& next) { steps.push_back(next); });
  write_machine(measured, folder / "m.json");
  const Machine machine = read_machine(folder / "m.json");

  check_is_this_host(machine, "m.json");
  EXPECT_GE(steps.size(), 2U);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"m.json"});
  for (const char* work : {"convolution", "product", "attention"}) EXPECT_GT(machine.flops(work), 1e6) << work;
  EXPECT_GT(machine.bandwidth(1e6), 1e6);
  EXPECT_GT(machine.device.launch, 0);
  EXPECT_GT(machine.host.base_rss, 1e6);
  if (machine.host.cores > 1) {
    EXPECT_GT(machine.neighbours.begin()->second.at("stream"), 0);
  }
  const Machine::Verbs& verbs = machine.verbs.at("threads").at(2);
  EXPECT_EQ(verbs.size(), 7U);
  EXPECT_GT(at_size(verbs.at("all_reduce"), 1e6), 0);
  EXPECT_GT(machine.levels.at(0).bandwidth, 1e6);
}

TEST(Calibration, X14_AddsTheCollectivesOfRanks) {
  Machine machine = parse_machine(kText, "a.json");
  std::string refused;
  run_ranks(3, [&](Communicator& world) {
    Machine mine = machine;
    calibrate_verbs(world, 0.02, mine);
    if (world.rank() == 0) machine = mine;
  });
  EXPECT_EQ(machine.verbs.at("threads").at(3).size(), 7U);
  EXPECT_EQ(machine.verbs.at("threads").at(2).size(), 1U);
  parse_machine(to_json(machine), "b.json");
  EXPECT_THAT(message_of([&] { calibrate_verbs(*make_self_communicator(), 1, machine); }),
              HasSubstr("one rank has no collectives"));
  EXPECT_THAT(message_of([&] { calibrate_verbs(*make_fake_communicator(0, 4), 1, machine); }),
              HasSubstr("the backend fake sends nothing"));
}

}  // namespace
}  // namespace moonhalo::test_machine
