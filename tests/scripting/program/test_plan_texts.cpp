// SPDX-License-Identifier: Apache-2.0
// The lines of the report of moonhalo plan, of plans that are made here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "moonhalo/scripting/program/plan_check.h"
#include "moonhalo/scripting/program/plan_limits.h"
#include "moonhalo/scripting/program/plan_report.h"

namespace moonhalo::scripting::test_plan_texts {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Ranks of one kind, with 100 bytes at the peak, which is in this phase outside of modules.
RanksPlan plan_of(const std::vector<TapePeak::Held>& held, Phase phase = Phase::kForward, int64_t ranks = 1) {
  RanksPlan plan;
  plan.ranks = ranks;
  plan.found.tapes.kinds.emplace_back();
  plan.found.tapes.kinds[0].modules = {"", "fc"};
  plan.found.tapes.kind_of.assign(ranks, 0);
  plan.found.runs.emplace_back();
  plan.kinds.push_back({{0}, 100, {.bytes = 100, .module = 0, .phase = phase, .held = held}});
  plan.counts.resize(ranks);
  return plan;
}

std::string report(const RanksPlan& plan) { return ranks_text({"train.lua"}, plan); }

StepForecast forecast(double step) {
  StepForecast time{.step = step, .low = 0.9 * step, .high = 1.1 * step, .computing = step / 2, .messages = step / 2};
  time.hindrances.push_back({"starting 7 operators", "make blocks larger", step / 4});
  return time;
}

TEST(PlanTexts, X14_LongTimesAreInSecondsMinutesAndHours) {
  RanksPlan plan = plan_of({});
  plan.time = forecast(623.324);
  EXPECT_THAT(report(plan), AllOf(HasSubstr("step           10.4 min (9.35 min to 11.4 min): computing 5.19 min, "),
                                  HasSubstr("time first     2.60 min: starting"), HasSubstr("waiting 0 ms; ")));
  RanksPlan more = plan_of({}, Phase::kForward, 64);
  more.time = forecast(623.324);
  EXPECT_THAT(comparison_text({"train.lua"}, {plan, more}),
              AllOf(HasSubstr("  step                      10.4 min    10.4 min\n"),
                    HasSubstr("  ranks x step              10.4 min      11.1 h\n")));

  RanksCheck check;
  check.ranks.push_back({.steps = 6, .peak = 100, .peak_of_step = 100});
  check.ranks[0].seconds = {700, 720};
  check.ranks[0].processor = check.ranks[0].blocked = {30, 30};
  EXPECT_THAT(check_text(plan, check), AllOf(HasSubstr("10.4 min forecast, 12.0 min measured (11.7 min to 12.0 min in "
                                                       "the middle half of 2 steps; odd and even ones 2.8 % apart)"),
                                             HasSubstr("30.0 s measured\n")));
}

// No pattern of modules matches what runs outside of them.
TEST(PlanTexts, X14_MemoryFromOutsideOfModulesHasARemedyOfItsOwn) {
  RanksPlan outside = plan_of({{.module = 0, .phase = Phase::kForward, .bytes = 60},
                               {.module = 1, .phase = Phase::kForward, .bytes = 30},
                               {.before = true, .bytes = 10}});
  find_limits(outside);
  EXPECT_THAT(report(outside),
              AllOf(HasSubstr("the peak is in forward, outside of modules; held then: 60 B made in forward, outside of "
                              "modules; 30 B made in module fc, forward; 10 B made before the step\n"),
                    HasSubstr("90 B (90 %) were made in forward, the most of it outside of modules: 60 B (60 %)\n")));
  EXPECT_THAT(outside.memory.at(0).fix, AllOf(HasSubstr("mh.checkpoint(fn, ...)"), Not(HasSubstr("pattern"))));

  RanksPlan inside = plan_of(
      {{.module = 0, .phase = Phase::kForward, .bytes = 30}, {.module = 1, .phase = Phase::kForward, .bytes = 60}},
      Phase::kBackward);
  find_limits(inside);
  EXPECT_THAT(report(inside), HasSubstr("the peak is in backward, outside of modules; held then: "));
  EXPECT_THAT(inside.memory.at(0).fix, HasSubstr("mh.checkpoint_modules(net, pattern)"));
  EXPECT_THAT(report(plan_of({}, Phase::kOptimizer)), HasSubstr("the peak is in the optimizer\n"));
}

TEST(PlanTexts, X14_ThePeakBeforeTheStepIsNotThatOfTheStep) {
  RanksPlan plan = plan_of({{.module = 1, .phase = Phase::kForward, .bytes = 60}});
  plan.kinds[0].peak = 400;

  EXPECT_THAT(report(plan), HasSubstr("the peak is before the step; that of the step is 100 B, in forward, outside of "
                                      "modules; held then: 60 B made in module fc, forward\n"));
}

TEST(PlanTexts, X14_CallsThatSendAreThoseOfARank) {
  RanksPlan plan = plan_of({}, Phase::kForward, 2);
  for (VerbCounts& counts : plan.counts) counts[static_cast<size_t>(Verb::kAllReduce)] = {2, 4, 800};

  EXPECT_THAT(report(plan), HasSubstr("  sent           800 B in 4 messages by rank 0\n"
                                      "                 calls of that rank: 2 all_reduce\n"));
}

// "ranks" is also the name of the dim where there is no mesh.
TEST(PlanTexts, X14_AMeshMayHaveTheNameRanks) {
  RanksPlan plan = plan_of({}, Phase::kForward, 2);
  plan.found.tapes.mesh = {2};
  plan.found.tapes.mesh_dims = {"ranks"};
  EXPECT_THAT(report(plan), HasSubstr("train.lua on 2 ranks: no tensor on a mesh, "));
  plan.found.meshes.push_back({.shape = {2}, .names = {"ranks"}});
  EXPECT_THAT(report(plan), HasSubstr("train.lua on 2 ranks: mesh ranks 2, "));
}

TEST(PlanTexts, X14_WhatIsAssumedOfTheRanksIsThere) {
  RanksPlan plan = plan_of({}, Phase::kForward, 4);
  EXPECT_THAT(report(plan), AllOf(HasSubstr("  assumed        ranks are processes; messages by mpi\n"),
                                  HasSubstr("(0 B of each process)")));
  plan.backend = "threads";
  EXPECT_THAT(report(plan), AllOf(HasSubstr("  assumed        ranks are threads of one process\n"),
                                  HasSubstr("(0 B of the process, which all ranks share)")));
  plan.time = forecast(0.1);
  plan.hosts = {.ranks = 4, .cores = 2};
  const PlanSubject here{"train.lua", "here"};
  EXPECT_THAT(ranks_text(here, plan),
              HasSubstr("  assumed        'here': 4 ranks on a host of 2 cores; ranks are threads of one process\n"));
  plan.backend = "nccl";
  plan.hosts = {.ranks = 2};
  EXPECT_THAT(
      ranks_text(here, plan),
      HasSubstr("  assumed        'here': 2 ranks on each of 2 hosts; ranks are processes; messages by nccl\n"));
  RanksPlan one = plan_of({});
  EXPECT_THAT(report(one), Not(HasSubstr("assumed")));
  one.time = forecast(0.1);
  EXPECT_THAT(ranks_text(here, one), HasSubstr("  assumed        'here': 1 rank on a host\n"));
  EXPECT_THAT(comparison_text(here, {one, plan}), HasSubstr("  messages by                    mpi        nccl\n"));
  EXPECT_THAT(comparison_text({"train.lua"}, {plan_of({}), plan_of({})}), Not(HasSubstr("messages by")));
}

// The report of --check of one rank: 100 bytes and no messages are planned.
std::string check_report(const RealRank& real, std::optional<double> within = {}) {
  RanksPlan plan = plan_of({});
  plan.time = forecast(0.1);
  RanksCheck check;
  check.ranks.push_back(real);
  check.within = within;
  return check_text(plan, check);
}

TEST(PlanTexts, X14_EachMissOfACheckHasARemedy) {
  RealRank right{.steps = 3, .peak = 100, .peak_of_step = 100};
  right.seconds = right.processor = right.blocked = {0.1, 0.1};
  EXPECT_THAT(check_report(right, 0.2), Not(HasSubstr(" fix ")));

  RealRank more = right;
  more.peak = more.peak_of_step = 200;
  EXPECT_THAT(check_report(more), HasSubstr(": out by more than 3 %\n                 fix   "));
  RealRank sends = right;
  sends.counts[0] = {1, 1, 8};
  EXPECT_THAT(check_report(sends), HasSubstr("1 message, 8 bytes\n                 fix   "));
  RealRank other = right;
  other.searched = {3, "data 2", "rows 2"};
  EXPECT_THAT(check_report(other),
              HasSubstr("  check search   the real run measured 3 divisions and took 'data 2'; the "
                        "plan took 'rows 2' by its forecast, so what follows may differ\n"
                        "                 fix   measure = 0 in pas_config"));
  other.searched.forecast = "data 2";
  EXPECT_THAT(check_report(other),
              AllOf(HasSubstr("took 'data 2', as the plan did by its forecast\n"), Not(HasSubstr(" fix "))));
  RealRank slow = right;
  slow.seconds = {0.5, 0.5};
  EXPECT_THAT(check_report(slow, 0.2),
              AllOf(HasSubstr("more than --within\n"), HasSubstr("measured\n                 fix   ")));
  EXPECT_THAT(check_report(slow), Not(HasSubstr(" fix ")));
}

}  // namespace
}  // namespace moonhalo::scripting::test_plan_texts
