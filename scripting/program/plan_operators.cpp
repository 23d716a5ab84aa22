// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/program/plan_operators.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/base/usable_cores.h"
#include "moonhalo/engine/launch/launch.h"

namespace moonhalo::scripting {
namespace {

constexpr double kSecondsOfOperator = 0.01;

// The calls of all kinds, each once.
std::vector<OperatorCall> calls_of_kinds(const RankKinds& found) {
  std::map<std::string, OperatorCall> all;
  for (const RankRun& run : found.runs) {
    for (const OperatorCall& call : run.calls) all.try_emplace(call.key, call);
  }
  std::vector<OperatorCall> calls;
  for (auto& [key, call] : all) calls.push_back(std::move(call));
  return calls;
}

// Measures the operators of one kind of ranks after another.
OperatorTimes::Report measure_kinds(const RankKinds& found, HostShare share, OperatorTimes& times,
                                    SearchProgress& progress) {
  OperatorTimes::Report report;
  for (size_t kind = 0; kind < found.runs.size(); ++kind) {
    progress.at([&] {
      return "operators of " + std::to_string(kind) + " of " + plural(std::ssize(found.runs), "kind") +
             " of ranks measured";
    });
    const RankRun& run = found.runs[kind];
    const OperatorTimes::Report one = times.measure_step(run.calls, run.step, share, kSecondsOfOperator);
    report.measured += one.measured;
    report.stable = report.stable && one.stable;
    for (const std::string& failed : one.failed) {
      if (std::find(report.failed.begin(), report.failed.end(), failed) == report.failed.end())
        report.failed.push_back(failed);
    }
  }
  return report;
}

void say_measured(const OperatorTimes::Report& report, HostShare share) {
  const std::string beside = share.copies > 1 ? ", on " + plural(share.copies, "core") + " at the same time" : "";
  if (report.measured > 0)
    std::fprintf(stderr, "moonhalo: plan: measured %s of the script on this machine%s%s\n",
                 plural(report.measured, "operator").c_str(), beside.c_str(),
                 report.stable ? "" : "; the machine was not quiet, so times are rough");
  for (const std::string& failed : report.failed)
    std::fprintf(stderr, "moonhalo: plan: from rates, because it was not measured: %s\n", failed.c_str());
}

}  // namespace

int64_t measure_operators(const RankKinds& found, int ranks, OperatorTimes& times, Machine& machine,
                          SearchProgress& progress) {
  const HostShare share = HostShare::of(ranks, machine.host.cores);
  const std::vector<OperatorCall> calls = calls_of_kinds(found);
  if (!is_bound_to_part(machine, detect_launch().size)) {
    const OperatorTimes::Report report = measure_kinds(found, share, times, progress);
    if (report.measured > 0) times.save();
    say_measured(report, share);
  } else if (const int64_t missing = times.measurable(calls, share); missing > 0) {
    std::fprintf(stderr,
                 "moonhalo: plan: %s from rates, not measured: the launcher gave this process %lld of %lld cores\n  "
                 "fix   plan once without the launcher, with --ranks %d --backend mpi "
                 "and this machine file\n",
                 plural(missing, "operator").c_str(), static_cast<long long>(usable_core_count()),
                 static_cast<long long>(machine.host.cores), ranks);
  }
  const auto of_file = machine.operators;
  times.give_to(machine, share);
  for (const auto& [key, by_cores] : of_file) machine.operators[key] = by_cores;
  return times.unsteady(calls, share);
}

void note_unmeasured(const Machine& machine, const RankKinds& found, bool measures, StepForecast& time) {
  const std::vector<OperatorCall> calls = calls_of_kinds(found);
  const int64_t count = std::count_if(calls.begin(), calls.end(),
                                      [&](const OperatorCall& call) { return !machine.operators.contains(call.key); });
  if (!machine.measured || count == 0) return;
  time.notes.push_back(std::to_string(count) + (count == 1 ? " operator was" : " operators were") + " not measured (" +
                       (measures ? "'" + machine.name + "' is not this host" : "--no-measure") + "): time from rates");
}

void take_host_time(const RankKinds& found, Machine& machine) {
  double seconds = 0;
  int64_t operators = 0;
  for (size_t i = 0; i < found.runs.size(); ++i) {
    if (found.runs[i].host == 0) continue;
    seconds += found.runs[i].host;
    for (const TapeEvent& event : found.tapes.kinds[i].events) {
      const auto* call = std::get_if<TapeOperator>(&event.what);
      operators += call != nullptr ? call->times : 0;
    }
  }
  if (operators > 0) machine.device.launch = machine.device.dispatch = seconds / static_cast<double>(operators);
}

}  // namespace moonhalo::scripting
