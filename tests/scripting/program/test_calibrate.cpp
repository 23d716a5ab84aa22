// SPDX-License-Identifier: Apache-2.0
// moonhalo calibrate: the file that it writes, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "moonhalo/engine/base/usable_cores.h"
#include "moonhalo/engine/forecast/machine.h"
#include "tests/scripting/run_program.h"
#include "tests/support/folder.h"

namespace moonhalo::scripting::test_calibrate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Calibrate, X14_APathThatCannotBeWrittenIsKnownBeforeAnythingIsMeasured) {
  const testing::Folder folder;
  const Result refused = run({"calibrate", folder / "no/machine.json", "--seconds", "3600"});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("it cannot be written"), HasSubstr("\n  fix   ")));
  EXPECT_THAT(refused.err, ::testing::Not(HasSubstr("calibrate: measures")));
}

TEST(Calibrate, X14_WritesAMachineAndAddsTheCollectivesOfRanks) {
  const testing::Folder folder;
  const std::string file = folder / "machine.json";

  const Result alone = run({"calibrate", file, "--seconds", "0.02"});
  ASSERT_EQ(alone.status, 0) << alone.err;
  EXPECT_THAT(alone.err, AllOf(HasSubstr("calibrate: measures this machine, at most about 0.02 s; stop other programs"),
                               HasSubstr("calibrate: time slice of a core")));
  EXPECT_THAT(
      alone.out,
      AllOf(HasSubstr("rates of one core, and how many times as long the same work takes where more cores work"),
            HasSubstr(" GFLOP/s"), HasSubstr("rank threads: time of a collective with 4 B, and with 16.8 MB"),
            HasSubstr("wrote " + file + ": moonhalo plan SCRIPT --machine " + file),
            HasSubstr("mpirun -n N moonhalo calibrate " + file + " --verbs adds")));
  // Noise is said where it is found, and again at the end with the remedy.
  EXPECT_EQ(alone.err.find("calibrate: not quiet: ") != std::string::npos,
            alone.out.find("the machine was not quiet: ") != std::string::npos);
  EXPECT_EQ(read_machine(file).quiet, alone.out.find("the machine was not quiet: ") == std::string::npos);
  check_is_this_host(read_machine(file), file);
  const int64_t in_turns = usable_core_count() + 1, more = in_turns + 1;  // threads on these cores
  EXPECT_EQ(read_machine(file).verbs.at("threads").count(in_turns), 1U);
  EXPECT_EQ(read_machine(file).verbs.at("threads").count(more), 0U);

  const Result verbs = run({"calibrate", file, "--verbs", "--ranks", std::to_string(more), "--seconds", "0.02"});
  ASSERT_EQ(verbs.status, 0) << verbs.err;
  EXPECT_THAT(verbs.err, HasSubstr("calibrate: collectives of " + std::to_string(more) + " rank threads, at most"));
  EXPECT_THAT(verbs.out, HasSubstr(std::to_string(more) + " rank threads: time of a collective"));
  EXPECT_EQ(read_machine(file).verbs.at("threads").count(more), 1U);
}

TEST(Calibrate, X14_RefusesFilesThatCannotBe) {
  const testing::Folder folder;
  std::ofstream(folder / "broken.json") << "{\"name\": \"a\", \"hosts\": {}}";

  EXPECT_THAT(run({"calibrate", folder / "gone.json", "--verbs", "--ranks", "2"}).err,
              AllOf(HasSubstr("there is no such file"), HasSubstr("moonhalo calibrate ")));
  EXPECT_THAT(run({"calibrate", folder / "broken.json", "--verbs", "--ranks", "2"}).err,
              HasSubstr("unknown key 'hosts'; did you mean 'host'?"));
  EXPECT_EQ(run({"calibrate", folder / "gone.json", "--verbs", "--ranks", "2"}).status, 1);
  EXPECT_EQ(run({"calibrate", "--seconds", "0"}).status, 2);
  const Result ranks = run({"calibrate", folder / "new.json", "--ranks", "5"});
  EXPECT_EQ(ranks.status, 2);
  EXPECT_THAT(ranks.err, HasSubstr("--ranks requires --verbs"));
}

}  // namespace
}  // namespace moonhalo::scripting::test_calibrate
