// SPDX-License-Identifier: Apache-2.0
// Plans and dry runs of scripts that read files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/scripting/program/plan_folder.h"
#include "tests/scripting/run_program.h"

namespace moonhalo::scripting::test_plan_files {
namespace {

using ::testing::HasSubstr;

class PlanFiles : public PlanFolder {
 protected:
  static std::string text_of(const std::filesystem::path& file) {
    std::ostringstream text;
    text << std::ifstream(file, std::ios::binary).rdbuf();
    return text.str();
  }
};

// Goes on from its checkpoint, if it is there.
constexpr const char* kResumes = R"(
local mh = require "moonhalo"
local nn = mh.nn
local path, layout = arg[1], arg[2]
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"data"})
local net = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64))
mh.fully_shard(net, {mesh = mesh})
local optimizer = mh.optim.AdamW(net:parameters(), {lr = 1e-3})
local function state() return {model = net, optimizer = optimizer, scale = mh.ones{128, 128}} end
if mh.files.exists(path) then
  mh.checkpoint.load(path, state())
  print "resumed"
end
for _ = 1, 3 do
  optimizer:zero_grad()
  net(mh.local_batch(mh.randn{40, 64})):square():mean():backward()
  optimizer:step()
  mh.checkpoint.save(path, state(), {layout = layout})
end
)";

TEST_F(PlanFiles, X14_AScriptThatResumesIsPlanned) {
  const std::string training = script(kResumes);
  for (const char* layout : {"whole", "per_rank"}) {
    SCOPED_TRACE(layout);
    const std::string checkpoint = path(layout);
    const Result first = run({"run", training, "--ranks", "2", "--", checkpoint, layout});
    ASSERT_EQ(first.status, 0) << first.err;
    std::vector<std::string> before, after;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(checkpoint))
      before.push_back(entry.path().string() + text_of(entry.path()));

    for (const char* ranks : {"1", "2", "5"}) {
      if (std::string(layout) == "per_rank" && std::string(ranks) != "2") continue;
      const Result plan = run({"plan", training, "--ranks", ranks, "--", checkpoint, layout});
      EXPECT_EQ(plan.status, 0) << ranks << " ranks: " << plan.err;
    }
    for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--fake-tensors"}}) {
      std::vector<std::string> words{"run", training, "--backend", "fake", "--ranks", "2", "--fake-rank", "1"};
      words.insert(words.end(), more.begin(), more.end());
      words.insert(words.end(), {"--", checkpoint, layout});
      const Result dry = run(words);
      EXPECT_EQ(dry.status, 0) << dry.err;
      EXPECT_THAT(dry.out, HasSubstr("resumed"));
    }

    for (const auto& entry : std::filesystem::recursive_directory_iterator(checkpoint))
      after.push_back(entry.path().string() + text_of(entry.path()));
    EXPECT_EQ(after, before) << "a dry run writes no file";
  }
}

// Its values are those of no memory, so that their checksum is another.
TEST_F(PlanFiles, X14_LargeTensorsOfFilesArePlanned) {
  const std::string file = path("weights.safetensors");
  const std::string training = script(R"(
local mh = require "moonhalo"
if arg[2] then mh.safetensors.save(arg[1], {weight = mh.randn{3000, 3200}}) end
print(mh.safetensors.load(arg[1])[1][2].shape[1])
)");
  const Result first = run({"run", training, "--", file, "save"});
  ASSERT_EQ(first.status, 0) << first.err;

  const Result plan = run({"plan", training, "--ranks", "2", "--", file});

  EXPECT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("38.4 MB of tensors at the peak"));
}

}  // namespace
}  // namespace moonhalo::scripting::test_plan_files
