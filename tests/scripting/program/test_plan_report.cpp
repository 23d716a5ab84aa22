// SPDX-License-Identifier: Apache-2.0
// moonhalo plan: what it names as a limit, its picture, and scripts whose ranks give different arguments.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <png.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "moonhalo/scripting/program/plan_limits.h"
#include "tests/scripting/program/plan_folder.h"
#include "tests/scripting/run_program.h"

namespace moonhalo::scripting::test_plan_report {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using Json = nlohmann::json;

class PlanReport : public PlanFolder {};

// One rank of one kind, with 100 bytes at the peak of its step.
RanksPlan small_plan(const std::vector<TapePeak::Held>& held) {
  RanksPlan plan;
  plan.found.tapes.kinds.emplace_back();
  plan.found.tapes.kinds[0].modules = {"", "fc"};
  plan.found.tapes.kind_of = {0};
  plan.kinds.push_back({{0}, 100, {.bytes = 100, .held = held}});
  plan.counts.emplace_back();
  return plan;
}

TEST(PlanLimits, X14_RecomputeIsForMemoryOfForwardAlone) {
  RanksPlan forward = small_plan({{.module = 1, .phase = Phase::kForward, .bytes = 90}});
  find_limits(forward);
  ASSERT_EQ(forward.memory.size(), 1U);
  EXPECT_THAT(forward.memory[0].fix, HasSubstr("mh.checkpoint_modules(net, pattern)"));

  RanksPlan backward = small_plan(
      {{.module = 1, .phase = Phase::kBackward, .bytes = 60}, {.module = 0, .phase = Phase::kBackward, .bytes = 30}});
  find_limits(backward);
  ASSERT_EQ(backward.memory.size(), 1U);
  EXPECT_THAT(backward.memory[0].what,
              HasSubstr("of 100 B at the peak of the step, 90 B (90 %) were made in backward, the most in "
                        "module fc, backward: 60 B (60 %)"));
  EXPECT_THAT(backward.memory[0].fix, Not(HasSubstr("recompute")));
}

TEST(PlanLimits, X14_DataIsNotDividedByFullyShard) {
  RanksPlan data = small_plan({{.before = true, .bytes = 80}});
  data.found.tapes.kinds[0].optimizer = 20;
  find_limits(data);
  EXPECT_THAT(data.memory.at(0).what,
              HasSubstr("of 100 B at the peak of the step, 80 B (80 %) are there before the step: "
                        "60 B (60 %) are neither parameters nor states"));
  EXPECT_THAT(data.memory.at(0).fix, Not(HasSubstr("fully_shard")));

  RanksPlan parameters = small_plan({{.before = true, .bytes = 80}});
  parameters.found.tapes.kinds[0].optimizer = 60;
  find_limits(parameters);
  EXPECT_THAT(parameters.memory.at(0).fix, HasSubstr("mh.fully_shard(net"));
  parameters.memory.clear();
  parameters.found.tapes.kinds[0].gathers_parameters = true;
  find_limits(parameters);
  EXPECT_THAT(parameters.memory.at(0).fix, HasSubstr("more ranks along the mesh dim of fully_shard"));
}

// AdamW has two states for each parameter.
TEST_F(PlanReport, X14_MemoryOfTheOptimizerIsToldFromData) {
  const std::string training = script(R"(
local mh = require "moonhalo"
local nn = mh.nn
local data = mh.zeros{tonumber(arg[1]), 500}
local net = nn.Linear(500, 1000, false)
local optimizer = mh.optim.AdamW(net:parameters(), {lr = 0.1})
for _ = 1, 3 do
  optimizer:zero_grad()
  net(data["0:4"]):square():mean():backward()
  optimizer:step()
end
)");
  const auto first_limit = [&](const char* rows) {
    const Result plan = run({"plan", training, "--json", path("plan.json"), "--", rows});
    EXPECT_EQ(plan.status, 0) << plan.err;
    const Json one = json()["plans"][0];
    EXPECT_NEAR(one["kinds"][0]["optimizer_memory"].get<double>(), 3 * 2e6, 1e4);
    return one["memory"][0]["fix"].get<std::string>();
  };
  EXPECT_THAT(first_limit("10"), HasSubstr("mh.fully_shard"));
  EXPECT_THAT(first_limit("40000"), AllOf(HasSubstr("mh.data"), Not(HasSubstr("fully_shard"))));
}

// Rank 0 alone has the field, as a script that has read a file has it.
constexpr const char* kFromRankZero = R"(
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"rows"})
local field = mh.zeros{1, 3, 90, 100}
local x = mh.scatter_tensor(mesh.rank == 0 and field or nil, mesh, {mh.Shard(2)})
local y = mh.distribute_tensor(mesh.rank == 0 and field["0"] or nil, mesh, {mh.Shard(1)})
assert(x.shape[3] == 90 and y.ndim == 3)
if mh.rank() == 0 then assert(x:to_local().shape[3] == math.ceil(90 / mh.world_size())) end
mh.comm_stats{reset = true}
local net = mh.nn.Conv2d(3, 4, 3, {padding = 1})
mh.distribute_module(net, mesh)
net(x):square():mean():backward()
print(mh.rank(), mh.comm_stats().bytes)
)";

TEST_F(PlanReport, X14_ATensorOfRankZeroAloneIsPlanned) {
  const std::string training = script(kFromRankZero);
  for (const char* ranks : {"2", "3", "40"}) {
    SCOPED_TRACE(ranks);
    const Result plan = run({"plan", training, "--ranks", ranks, "--json", path("plan.json")});
    ASSERT_EQ(plan.status, 0) << plan.err;
    EXPECT_EQ(json()["plans"][0]["of_rank"].size(), std::stoul(ranks));
  }
  const Result alone =
      run({"run", training, "--backend", "fake", "--ranks", "3", "--fake-rank", "2", "--fake-tensors"});
  EXPECT_EQ(alone.status, 1);
  EXPECT_THAT(alone.err, AllOf(HasSubstr("scatter_tensor: this dry run of rank 2 has no facts of rank 0, the source"),
                               HasSubstr("use moonhalo plan, which runs rank 0, too")));
}

TEST_F(PlanReport, X14_ASourceThatHasNothingIsAnError) {
  const Result plan = run({"plan", script(R"(
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"rows"})
mh.scatter_tensor(nil, mesh, {mh.Shard(0)})
)"),
                           "--ranks", "2"});
  EXPECT_EQ(plan.status, 1);
  EXPECT_THAT(plan.err, HasSubstr("scatter_tensor: rank 0, the source, holds no tensor"));
}

// A strong scaling: the field stays, and blocks become smaller.
constexpr const char* kScaling = R"(
local mh = require "moonhalo"
local nn = mh.nn
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"rows"})
local net = nn.Sequential(nn.Conv2d(3, 32, 3, {padding = 1}), nn.GELU(), nn.Conv2d(32, 1, 1))
mh.distribute_module(net, mesh)
local rows = 512 // mh.world_size()
local x = mh.from_local(mh.zeros{1, 3, rows, 512}, mesh, {mh.Shard(2)})
local optimizer = mh.optim.AdamW(net:parameters(), {lr = 0.1})
for _ = 1, 3 do
  collectgarbage()
  optimizer:zero_grad()
  net(x):square():mean():backward()
  optimizer:step()
end
)";

TEST_F(PlanReport, X14_TimesOfHindrancesAreThereOnce) {
  const Result plan =
      run({"plan", script(kScaling), "--ranks", "16", "--machine", "h100", "--json", path("plan.json")});

  ASSERT_EQ(plan.status, 0) << plan.err;
  std::istringstream lines(plan.out);
  int found = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  time first ") && !line.starts_with("  then ")) continue;
    ++found;
    EXPECT_THAT(line, MatchesRegex("  (time first|then) +[0-9.]+ ms: .+")) << line;
    EXPECT_EQ(line.find(" ms", line.find(" ms") + 1), std::string::npos) << line;
  }
  EXPECT_GT(found, 0) << plan.out;
  EXPECT_THAT(plan.out, AllOf(HasSubstr("forecasts for 'h100'"), Not(HasSubstr("fully_shard")), Not(HasSubstr("-ib"))));
  const Json all = json();
  for (const Json& one : all["plans"][0]["time"]["hindrances"])
    EXPECT_THAT(one["what"].get<std::string>(), Not(HasSubstr(" ms")));
}

/// A picture that was read again.
struct Picture {
  int64_t width = 0, height = 0;
  std::vector<uint8_t> bytes;
  int at(int64_t row, int64_t column, int64_t channel) const { return bytes[(row * width + column) * 3 + channel]; }
  bool has(int64_t row, int64_t column, std::array<int, 3> color) const {
    for (int64_t i = row - 2; i <= row + 2; ++i) {
      for (int64_t j = column - 2; j <= column + 2; ++j) {
        bool same = true;
        for (int c = 0; c < 3; ++c) same = same && std::abs(at(i, j, c) - color[c]) <= 8;
        if (same) return true;
      }
    }
    return false;
  }
};

Picture read_picture(const std::string& path) {
  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  EXPECT_TRUE(png_image_begin_read_from_file(&header, path.c_str())) << header.message;
  header.format = PNG_FORMAT_RGB;
  Picture picture{header.width, header.height, {}};
  picture.bytes.resize(PNG_IMAGE_SIZE(header));
  EXPECT_TRUE(png_image_finish_read(&header, nullptr, picture.bytes.data(), 0, nullptr)) << header.message;
  return picture;
}

TEST_F(PlanReport, X14_ThePictureShowsWhatTheJsonSays) {
  const Result plan = run({"plan", script(kScaling), "--ranks", "2,8,32", "--machine", "h100", "--json",
                           path("plan.json"), "--png", path("plan.png")});
  ASSERT_EQ(plan.status, 0) << plan.err;
  const Json all = json();

  const Picture picture = read_picture(path("plan.png"));

  // The places of the values come from the axes, the values from the JSON.
  std::ofstream(path("places.lua")) << R"(
local mh = require "moonhalo"
local report = mh.json.load(arg[1])
local picture, frames = require("moonhalo.internal.plan_picture").of(report)
print(picture.shape[2], picture.shape[1])
local left = 0
for i, frame in ipairs(frames) do
  for k, ranks in ipairs {"2", "8", "32"} do assert(frame.xticks[k][2] == ranks) end
  for _, plan in ipairs(report.plans) do
    local largest = 0
    for _, kind in ipairs(plan.kinds) do largest = math.max(largest, kind.peak) end
    local value = i == 1 and plan.time.step * 1e3 or largest / 1e6
    local ideal = i == 1 and plan.ideal.step * 1e3 or plan.ideal.memory / 1e6
    local x = left + frame.to_x(plan.ranks)
    print(math.floor(x), math.floor(frame.to_y(value)), math.floor(frame.to_y(ideal)))
  end
  left = left + frame.width
end
)";
  std::istringstream places(run({"run", path("places.lua"), "--", path("plan.json")}).out);
  int64_t width = 0, height = 0, column = 0, row = 0, ideal = 0, seen = 0;
  places >> width >> height;
  EXPECT_EQ(picture.width, width);
  EXPECT_EQ(picture.height, height);
  std::vector<int64_t> rows;
  for (; places >> column >> row >> ideal; ++seen) {
    EXPECT_TRUE(picture.has(row, column, {0x2f, 0x6f, 0xb2})) << "no value at column " << column << ", row " << row;
    if (seen < 3 && std::abs(ideal - row) > 8)
      EXPECT_TRUE(picture.has(ideal, column, {0x6b, 0x72, 0x80})) << "no ideal line";
    rows.push_back(row);
  }
  EXPECT_EQ(seen, 6);
  const Json& plans = all["plans"];
  // A sixteenth of the work, and a little more for edges of blocks.
  const double share = plans[2]["ideal"]["step"].get<double>() / plans[0]["time"]["step"].get<double>();
  EXPECT_GE(16 * share, 0.99);
  EXPECT_LE(16 * share, 1.5);
  EXPECT_LT(rows[3], rows[5]) << "less memory is drawn lower";
  EXPECT_THAT(run({"plan", script(kScaling), "--png", "/no/such/folder/plan.png"}).err,
              AllOf(HasSubstr("--png: cannot write"), HasSubstr("\n  fix   ")));
}

// Fourier layers on a padded field, whose new rows are all behind those of the last rank.
constexpr const char* kPadded = R"(
local mh = require "moonhalo"
local nn = mh.nn
collectgarbage("stop")  -- so that ranks of one kind hold as much
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"rows"})
mh.set_output_cut(arg[1])
local Waves = nn.Module:extend("Waves")
function Waves:init(channels, modes)
  self.weight = nn.Parameter(mh.randn{channels, channels, modes, modes, 2})
  self.modes = modes
end
function Waves:forward(x)
  local spectrum = mh.fft_rfft2(x)
  local waves = (":, :, 0:%d, 0:%d"):format(self.modes, self.modes)
  local mixed = mh.zeros_like(spectrum)
  mixed[waves] = mh.einsum("bixy,ioxy->boxy", {spectrum[waves], mh.view_as_complex(self.weight)})
  return mh.fft_irfft2(mixed, {x.shape[3], x.shape[4]})
end
local enter, leave, layer = nn.Conv2d(3, 16, 1), nn.Conv2d(16, 1, 1), Waves(16, 4)
local net = nn.ModuleList{enter, layer, leave}
mh.distribute_module(net, mesh)
local x = mh.from_local(mh.zeros{1, 3, 16, 256}, mesh, {mh.Shard(2)})
local padded = nn.functional.pad(enter(x), {0, 0, 0, 3 * x.shape[3]})
leave(layer(padded:gelu())):square():mean():backward()
)";

TEST_F(PlanReport, X14_TheRankThatGetsAllPaddingIsWhatHurtsFirst) {
  const std::string training = script(kPadded);
  const auto plan = [&](const char* cut) {
    const Result result =
        run({"plan", training, "--ranks", "32", "--machine", "epyc", "--json", path("plan.json"), "--", cut});
    EXPECT_EQ(result.status, 0) << result.err;
    return json()["plans"][0];
  };

  const Json kept = plan("keep");
  EXPECT_THAT(kept["memory"][0]["what"].get<std::string>(),
              AllOf(HasSubstr("rank 31 holds "), HasSubstr("times the median"), HasSubstr("and this rank has 1552")));
  EXPECT_THAT(kept["memory"][0]["fix"].get<std::string>(), HasSubstr("set_output_cut(\"rebalance\")"));
  EXPECT_THAT(kept["time"]["hindrances"][0]["what"].get<std::string>(), HasSubstr("rank 31 of 32: "));

  const Json even = plan("rebalance");
  EXPECT_THAT(even["memory"][0]["what"].get<std::string>(), Not(HasSubstr("rank 31 holds")));
  EXPECT_LT(even["time"]["step"].get<double>(), kept["time"]["step"].get<double>());
}

// A dim of the field, arg[1], is cut over half of the ranks.
constexpr const char* kChannels = R"(
local mh = require "moonhalo"
local nn = mh.nn
local mesh = mh.init_device_mesh("cpu", {2, mh.world_size() // 2}, {"data", "tensor"})
local net = nn.Sequential(nn.Conv2d(3, 16, 3, {padding = 1}), nn.GELU(), nn.Conv2d(16, 3, 3, {padding = 1}))
mh.distribute_module(net, mesh)
local x = mh.distribute_tensor(mh.zeros{4, 3, 64, 48}, mesh, {mh.Shard(0), mh.Shard(tonumber(arg[1]))})
local optimizer = mh.optim.AdamW(net:parameters(), {lr = 1e-3})
for _ = 1, 3 do
  optimizer:zero_grad()
  net(x):square():mean():backward()
  optimizer:step()
end
)";

TEST_F(PlanReport, X14_ACutThatLeavesMostRanksWithoutRowsIsNoted) {
  const std::string training = script(kChannels);
  const auto plan = [&](const char* dim) {
    const Result result = run({"plan", training, "--ranks", "64", "--json", path("plan.json"), "--", dim});
    EXPECT_EQ(result.status, 0) << result.err;
    return result.out;
  };

  EXPECT_THAT(
      plan("1"),
      HasSubstr("  empty blocks   29 of 32 blocks along tensor are empty: dim 1 of [4, 3, 64, 48] has 3 rows\n"
                "                 fix   at most 3 ranks along tensor, or cut a dim with more rows over them\n"));
  EXPECT_EQ(json()["plans"][0]["empty_blocks"].size(), 1);
  EXPECT_THAT(plan("2"), Not(HasSubstr("empty blocks")));
  EXPECT_EQ(json()["plans"][0]["empty_blocks"].size(), 0);
}

TEST_F(PlanReport, X14_TheScriptsToPlanAreRight) {
  const std::filesystem::path folder = std::filesystem::path(__FILE__).parent_path() / "../../../examples/plans";
  int scripts = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    SCOPED_TRACE(entry.path().filename());
    const Result plan = run({"plan", entry.path().string(), "--ranks", "8", "--json", path("plan.json")});
    ASSERT_EQ(plan.status, 0) << plan.err;
    const auto name = entry.path().stem();
    EXPECT_EQ(json()["plans"][0]["mesh_dims"].size(), name == "fno" || name == "transformer" ? 1U : 3U);
    EXPECT_THAT(plan.out, HasSubstr(" on 8 ranks: mesh "));
    ++scripts;
  }
  EXPECT_EQ(scripts, 4);
}

// The work of a plan does not grow with the ranks: as many are run of 512 as of 4,096.
TEST_F(PlanReport, X14_ThousandsOfRanksTakeAsManyDryRunsAsHundreds) {
  const std::string training = script(R"(
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {mh.world_size() // 16, 16}, {"rows", "columns"})
local net = mh.nn.Sequential(mh.nn.Conv2d(3, 8, 3, {padding = 1}), mh.nn.MaxPool2d(2), mh.nn.Conv2d(8, 8, 3, {padding = 1}))
mh.distribute_module(net, mesh)
local x = mh.from_local(mh.zeros{1, 3, 64, 64}, mesh, {mh.Shard(2), mh.Shard(3)})
local optimizer = mh.optim.AdamW(net:parameters(), {lr = 0.1})
for _ = 1, 3 do
  collectgarbage()
  optimizer:zero_grad()
  net(x):square():mean():backward()
  optimizer:step()
end
)");
  const Result plan = run({"plan", training, "--ranks", "512,4096", "--drawn", "64", "--json", path("plan.json")});
  ASSERT_EQ(plan.status, 0) << plan.err;
  const Json plans = json()["plans"];
  for (const Json& one : plans) {
    EXPECT_EQ(one["drawn"], 64);
    EXPECT_LE(one["ran"].size() - 64, 25);
    EXPECT_EQ(one["kinds"].size(), 9);
    EXPECT_TRUE(one["unlike"].empty());
  }
  EXPECT_EQ(plans[0]["ran"].size(), plans[1]["ran"].size());
}

}  // namespace
}  // namespace moonhalo::scripting::test_plan_report
