// SPDX-License-Identifier: Apache-2.0
// Every script of tests/scripting on a simulated device (support/fake_device.h) that its ranks share, as `moonhalo
// test SCRIPT --ranks N --device fake:0`. What is left out, and why: support/device_scripts.txt.
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "tests/scripting/run_program.h"
#include "tests/support/fake_device.h"

namespace moonhalo::scripting::test_device_scripts {
namespace {

namespace fs = std::filesystem;

const fs::path kTests = fs::path(__FILE__).parent_path() / "../..";

// The tests that fail on devices, by their script's name; "*" stands for all of them, "long" for those that take long.
std::map<std::string, std::set<std::string>> left_out() {
  std::ifstream table(kTests / "support/device_scripts.txt");
  TORCH_CHECK(table.good(), "no table of scripts on devices");
  std::map<std::string, std::set<std::string>> tests;
  for (std::string line; std::getline(table, line);) {
    if (line.empty() || line.front() == '#') continue;
    const size_t colon = line.find(": "), dot = line.find('.');
    TORCH_CHECK(colon != std::string::npos, "device_scripts.txt: no reason: ", line);
    if (line.starts_with("long ")) {
      tests[line.substr(5, colon - 5)].insert("long");
      continue;
    }
    TORCH_CHECK(dot < colon, "device_scripts.txt: no test: ", line);
    tests[line.substr(0, dot)].insert(line.substr(dot + 1, colon - dot - 1));
  }
  return tests;
}

std::vector<std::string> scripts() {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(kTests / "scripting"))
    if (entry.path().extension() == ".lua") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string ranks_of(const std::string& script) {
  const size_t at = script.rfind("_ranks");
  return at == std::string::npos ? "1" : script.substr(at + 6);
}

class ScriptOnDevicesTests : public ::testing::TestWithParam<std::string> {};

// The names in the lines "FAILED test_name (1 ms)".
std::set<std::string> failed_tests(const std::string& said) {
  std::set<std::string> names;
  std::istringstream lines(said);
  for (std::string word, name; lines >> word;)
    if (word == "FAILED" && lines >> name) names.insert(name);
  return names;
}

TEST_P(ScriptOnDevicesTests, S16_Passes) {
  static const auto table = left_out();
  moonhalo::testing::fake::install();
  const std::string path = fs::weakly_canonical(kTests / "scripting" / (GetParam() + ".lua"));
  const auto found = table.find(GetParam());
  std::set<std::string> expected = found == table.end() ? std::set<std::string>() : found->second;
  const bool is_long = expected.erase("long") > 0 && std::getenv("MOONHALO_TEST_ALL") == nullptr;
  if (is_long || expected.contains("*")) GTEST_SKIP() << "left out by support/device_scripts.txt";

  // Some read files of the tree, as CTest runs them.
  const fs::path before = fs::current_path();
  fs::current_path(kTests / "..");
  const Result result = run({"test", path, "--ranks", ranks_of(GetParam()), "--device", "fake:0"});

  fs::current_path(before);
  EXPECT_EQ(failed_tests(result.out), expected) << result.out << result.err;
  if (expected.empty()) {
    EXPECT_EQ(result.status, kDone) << result.err << result.out;
  }
}

TEST(ScriptOnDevicesTable, NamesScriptsThatAreThere) {
  for (const auto& [script, tests] : left_out())
    EXPECT_TRUE(fs::exists(kTests / "scripting" / (script + ".lua"))) << script;
}

INSTANTIATE_TEST_SUITE_P(Cases, ScriptOnDevicesTests, ::testing::ValuesIn(scripts()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace moonhalo::scripting::test_device_scripts
