// SPDX-License-Identifier: Apache-2.0
// moonhalo plan for 4,096 ranks, with fields of 16,384 x 16,384 points: the scripts of examples/plans.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/scripting/run_program.h"
#include "tests/support/folder.h"
#include "tests/support/process_memory.h"

namespace moonhalo::scripting::test_plan_scale {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::json;

constexpr int64_t kRanks = 4096;

// Plans a script; `settings` are those of --set.
Json planned(const std::string& name, const std::vector<std::string>& settings = {}) {
  const testing::Folder folder;
  const std::filesystem::path script =
      std::filesystem::path(__FILE__).parent_path() / "../../../examples/plans" / (name + ".lua");
  std::vector<std::string> words = {"plan",      script.string(), "--ranks", std::to_string(kRanks),
                                    "--machine", "h100",          "--json",  folder / "plan.json"};
  for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
  Result plan;
  const double grown = testing::memory_growth([&] { plan = run(words); });
  EXPECT_EQ(plan.status, 0) << plan.err;
  EXPECT_LT(grown, 1e9) << "bytes of resident memory";
  return Json::parse(std::ifstream(folder / "plan.json"))["plans"][0];
}

// Few ranks stand for all, and those that are drawn do what their kind does.
void expect_all_ranks(const Json& plan) {
  EXPECT_EQ(plan["of_rank"].size(), kRanks);
  EXPECT_LE(plan["ran"].size(), 64);
  EXPECT_EQ(plan["drawn"], 4);
  EXPECT_THAT(plan["unlike"], IsEmpty());
  EXPECT_GT(plan["time"]["step"].get<double>(), 0);
}

TEST(PlanScale, X14_UNetOf4096Ranks) { expect_all_ranks(planned("unet")); }
TEST(PlanScale, X14_ViTOf4096Ranks) { expect_all_ranks(planned("vit")); }
TEST(PlanScale, X14_FnoOf4096Ranks) { expect_all_ranks(planned("fno")); }

// Parameters, gradients and states are stored in blocks on all ranks. Each block of the transformer is gathered in
// forward and in backward, and its gradients are summed; the rest of the model is gathered and summed once.
TEST(PlanScale, X14_StoredTransformerOf4096Ranks) {
  const Json plan = planned("transformer", {"depth=2"});
  expect_all_ranks(plan);
  for (const int64_t rank : {0, 2047, 4095}) {
    const Json& sent = plan["of_rank"][rank]["sent"]["exchange"];
    EXPECT_EQ(sent["calls"], 2 * 3 + 2) << "rank " << rank;
    EXPECT_EQ(sent["messages"], (2 * 3 + 2) * (kRanks - 1)) << "rank " << rank;
  }
}

}  // namespace
}  // namespace moonhalo::scripting::test_plan_scale
