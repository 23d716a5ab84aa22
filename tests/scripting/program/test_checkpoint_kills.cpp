// SPDX-License-Identifier: Apache-2.0
// X16: runs that are killed while they save. fork() copies this process, so that a kill costs milliseconds and not the
// loading of LibTorch. MOONHALO_KILLS=500 kills more often, MOONHALO_KILL_SEED=N at the moments of an earlier run.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <random>

#include "moonhalo/io/checkpoint/checkpoint_folder.h"
#include "tests/io/support/raw_file.h"
#include "tests/scripting/several_states.h"

namespace moonhalo::scripting::test_checkpoint_kills {
namespace {

constexpr int kKills = 40;
constexpr int kLongest = 60000;         // microseconds until a kill: two saves or three; on a busy machine it doubles
constexpr int kLongestOfAll = 4 << 20;  // until a kill falls into a save

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoll(text) : otherwise;
}

/// Lua for a function whose tensors fit its step.
const std::string kSave = R"(local mh = require "moonhalo"
local function save(path, step)
  mh.checkpoint.save(path, {step = step, x = mh.full({60000}, step), more = {deep = mh.full({300}, -step)}}, {async = kAsync, layout = kLayout})
end
)";

/// Saves until it is killed after some microseconds.
void save_and_kill(lua_State* lua, const std::string& code, int microseconds) {
  const pid_t child = fork();
  if (child == 0) {
    std::fprintf(stderr, "the saving run ended: %s\n", run(lua, code).c_str());
    _exit(1);
  }
  usleep(static_cast<useconds_t>(microseconds));
  kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
}

enum class Saves { kInOneStep, kInTwoSteps, kInTheBackground, kOwnFolder, kOwnFolderInTheBackground };

/// The values of kAsync and kLayout.
std::string options_of(Saves saves) {
  const bool own = saves >= Saves::kOwnFolder;
  const bool async = saves == Saves::kInTheBackground || saves == Saves::kOwnFolderInTheBackground;
  return std::string("local kAsync, kLayout = ") + (async ? "true" : "false") +
         (own ? ", 'per_rank'\n" : ", 'whole'\n");
}

struct CheckpointKills : ::testing::TestWithParam<Saves> {};

TEST_P(CheckpointKills, X16_LeaveACompleteCheckpointAtAnyMoment) {
  const testing::Folder folder;
  const State state = new_state();
  at::set_num_threads(1);  // a copy of this process has none of OpenMP's threads, and would wait for them
  const std::string path = folder / "ck", first = options_of(GetParam()) + kSave;
  const bool own = GetParam() >= Saves::kOwnFolder;
  io::exchange_checkpoints_in_one_step(GetParam() != Saves::kInTwoSteps);
  const std::string load = "local saved = require('moonhalo').checkpoint.load('" + path + R"(')
    local step = saved.step
    assert(saved.x:eq(step):all():item() and saved.x.shape[1] == 60000, "x is of another step")
    assert(saved.more.deep:eq(-step):all():item() and saved.more.deep.shape[1] == 300, "deep is of another step")
    return step)";
  const auto kills = from_environment("MOONHALO_KILLS", kKills);
  const auto seed = from_environment("MOONHALO_KILL_SEED", std::random_device()());
  std::printf("MOONHALO_KILL_SEED=%lld\n", static_cast<long long>(seed));
  std::fflush(stdout);  // what is left in the buffer, each copy of this process would print
  std::mt19937 random(static_cast<unsigned>(seed));
  const std::string save_and_wait = first + "save('" + path + "', 0) mh.checkpoint.latest('" + (folder / "") + "')";
  run(state.get(), save_and_wait);
  int64_t step = 0, unfinished = 0, nameless = 0;
  int longest = kLongest;

  for (int64_t i = 0; i < kills && !HasFailure(); ++i) {
    const auto wait = static_cast<int>(random() % longest);
    SCOPED_TRACE("kill " + std::to_string(i) + " after " + std::to_string(wait) + " us");
    save_and_kill(state.get(),
                  first + "for step = " + std::to_string(step + 1) + ", math.huge do save('" + path + "', step) end",
                  wait);

    const bool in_a_save = (own ? std::distance(std::filesystem::directory_iterator(path), {})
                                : static_cast<int64_t>(folder.names().size())) > 1;
    unfinished += in_a_save;
    nameless += !std::filesystem::exists(path);
    const std::string loaded = run(state.get(), load);
    ASSERT_EQ(loaded, std::to_string(std::max(step, static_cast<int64_t>(std::atoll(loaded.c_str())))));
    step = std::atoll(loaded.c_str());
    if (step + unfinished == 0) longest = std::min(2 * longest, kLongestOfAll);
  }

  std::printf("%lld kills, %lld of them in a save, %lld between two renames; %lld saves\n",
              static_cast<long long>(kills), static_cast<long long>(unfinished), static_cast<long long>(nameless),
              static_cast<long long>(step));
  EXPECT_GT(step + unfinished, 0) << "no kill came late enough to fall into a save";
  if (GetParam() != Saves::kInTwoSteps) EXPECT_EQ(nameless, 0);
  run(state.get(), save_and_wait);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"ck"});
  if (own) EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path), {}), 1);
  io::exchange_checkpoints_in_one_step(true);
}

std::string name_of(const ::testing::TestParamInfo<Saves>& info) {
  const char* const names[] = {"InOneStep", "InTwoSteps", "InTheBackground", "OwnFolder", "OwnFolderInTheBackground"};
  return names[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Exchanged, CheckpointKills,
                         ::testing::Values(Saves::kInOneStep, Saves::kInTwoSteps, Saves::kInTheBackground,
                                           Saves::kOwnFolder, Saves::kOwnFolderInTheBackground),
                         name_of);

}  // namespace
}  // namespace moonhalo::scripting::test_checkpoint_kills
