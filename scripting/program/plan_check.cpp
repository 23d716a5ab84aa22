// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/program/plan_check.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/profile/memory_note.h"
#include "moonhalo/scripting/program/plan_report.h"

namespace moonhalo::scripting {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostDifferences = 6;

// The remedies of the three misses. A value that a plan does not compute is 1.
constexpr const char* kOtherWay =
    "let the script not decide by values that it computes (loss:item() is 1 in a plan), or plan another step "
    "(--steps)";
constexpr const char* kOtherMemory =
    "let the script not keep tensors by values that it computes (loss:item() is 1 in a plan); "
    "mh.memory{model = net, optimizer = optimizer} in a run says what holds memory";
constexpr const char* kOtherTime =
    "check on a quiet machine, with more steps (--check-steps); --measure-again measures the operators once more";

std::string fix_line(const std::string& fix) { return "                 fix   " + fix + "\n"; }

std::string off_in_percent(double planned, double measured) {
  char text[40];
  std::snprintf(text, sizeof text, "%+.1f %%", measured > 0 ? 100 * (planned / measured - 1) : 0.0);
  return text;
}

double at_share(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(std::lround(share * static_cast<double>(values.size() - 1)))];
}

// The difference of the medians of every other step, as a share: how far measurements of the same are apart.
double apart_from_itself(const std::vector<double>& values) {
  std::vector<double> halves[2];
  for (size_t i = 0; i < values.size(); ++i) halves[i % 2].push_back(values[i]);
  if (halves[1].empty()) return 0;
  const double middle = at_share(values, 0.5);
  return middle > 0 ? std::abs(at_share(halves[0], 0.5) - at_share(halves[1], 0.5)) / middle : 0;
}

// The median over steps of the mean over ranks.
double mean_of(const RanksCheck& check, const std::vector<double> RealRank::*what) {
  double sum = 0;
  for (const RealRank& rank : check.ranks) sum += at_share(rank.*what, 0.5);
  return sum / static_cast<double>(check.ranks.size());
}

const RanksPlan::Kind& kind_of_rank(const RanksPlan& plan, size_t rank) {
  return plan.kinds[plan.found.tapes.kind_of[rank]];
}

// Peaks of a rank, or of several together.
struct Peaks {
  int64_t planned = 0, measured = 0, planned_step = 0, measured_step = 0;

  void add(const Peaks& other) {
    planned += other.planned;
    measured += other.measured;
    planned_step += other.planned_step;
    measured_step += other.measured_step;
  }
  double off(bool threads) const {
    const double of_run = share_off(planned, measured), of_step = share_off(planned_step, measured_step);
    return threads ? std::min(of_run, of_step) : std::max(of_run, of_step);
  }
  bool run_is_right() const { return share_off(planned, measured) <= kMemoryWithin; }
  bool step_is_right() const { return share_off(planned_step, measured_step) <= kMemoryWithin; }
  static double share_off(int64_t planned, int64_t measured) {
    return std::abs(static_cast<double>(planned - measured)) / std::max(1.0, static_cast<double>(measured));
  }
};

Peaks peaks_of(const RanksPlan& plan, const RanksCheck& check, size_t rank) {
  const RanksPlan::Kind& kind = kind_of_rank(plan, rank);
  return {kind.peak, check.ranks[rank].peak, kind.in_step.bytes, check.ranks[rank].peak_of_step};
}

// Those that are compared: of all rank threads together, or of the process that is most off, and its rank.
struct Compared {
  Peaks peaks;
  size_t rank = 0;
};
Compared compared_peaks(const RanksPlan& plan, const RanksCheck& check) {
  Compared worst{peaks_of(plan, check, 0), 0};
  for (size_t rank = 1; rank < check.ranks.size(); ++rank) {
    const Peaks next = peaks_of(plan, check, rank);
    if (check.threads) {
      worst.peaks.add(next);
    } else if (next.off(false) > worst.peaks.off(false)) {
      worst = {next, rank};
    }
  }
  return worst;
}

// Says which of the two peaks decides, and whether it is right.
std::string verdict(const Peaks& peaks, bool threads) {
  if (peaks.run_is_right() && peaks.step_is_right()) return ": both are within 3 %";
  if (threads && peaks.run_is_right())
    return "\n                 right: the peak of the run is within 3 %, and decides; that of the step also depends on "
           "when Lua collects";
  if (threads && peaks.step_is_right())
    return "\n                 right: the peak in the step is within 3 %, and decides; that of the run also has what "
           "ranks free late";
  return ": out by more than 3 %";
}

std::string count_text(const VerbCount& count) {
  return plural(count.calls, "call") + ", " + plural(count.messages, "message") + ", " + plural(count.bytes, "byte");
}

std::vector<std::string> differences(const RanksPlan& plan, const RanksCheck& check) {
  std::vector<std::string> all;
  for (size_t rank = 0; rank < check.ranks.size(); ++rank) {
    for (size_t verb = 0; verb < plan.counts[rank].size(); ++verb) {
      const VerbCount &planned = plan.counts[rank][verb], &counted = check.ranks[rank].counts[verb];
      if (planned == counted) continue;
      all.push_back(plan.rank_text(static_cast<int64_t>(rank)) + ": " + name(static_cast<Verb>(verb)) + " planned " +
                    count_text(planned) + "; counted " + count_text(counted));
    }
  }
  return all;
}

std::string checked_counts(const RanksPlan& plan, const RanksCheck& check) {
  const int64_t ranks = std::ssize(check.ranks);
  std::string text = "  check          a real run of " +
                     (check.threads ? plural(ranks, "rank thread") : plural(ranks, "process", "es")) + " here: ";
  const std::vector<std::string> all = differences(plan, check);
  if (all.empty()) return text + "every rank sends what is planned\n";
  text += "other messages than planned\n";
  for (size_t i = 0; i < all.size() && i < kMostDifferences; ++i) text += "                 " + all[i] + "\n";
  if (all.size() > kMostDifferences)
    text += "                 and " + plural(std::ssize(all) - kMostDifferences, "more difference") + "\n";
  return text + fix_line(kOtherWay);
}

// A search of the real run that measures may take another division than that of the plan.
std::string checked_search(const RanksCheck& check) {
  const Searched& searched = check.ranks.front().searched;
  if (searched.measured == 0) return "";
  const std::string text = "  check search   the real run measured " + plural(searched.measured, "division") +
                           " and took '" + searched.taken + "'";
  if (searched.taken == searched.forecast) return text + ", as the plan did by its forecast\n";
  return text + "; the plan took '" + searched.forecast + "' by its forecast, so what follows may differ\n" +
         fix_line(
             "measure = 0 in pas_config takes forecasts in runs, too; or let a run store its plan (gen_savedir), "
             "which a plan of the script reads");
}

std::string checked_memory(const RanksPlan& plan, const RanksCheck& check) {
  const auto [peaks, rank] = compared_peaks(plan, check);
  const auto compared = [](int64_t planned, int64_t measured) {
    return bytes_text(planned) + " planned, " + bytes_text(measured) + " measured (" +
           off_in_percent(static_cast<double>(planned), static_cast<double>(measured)) + ")";
  };
  const bool together = check.threads && check.ranks.size() > 1;
  return "  check memory   " + (together ? "all ranks together" : plan.rank_text(static_cast<int64_t>(rank))) + ": " +
         compared(peaks.planned, peaks.measured) + "; in the step " +
         compared(peaks.planned_step, peaks.measured_step) + verdict(peaks, check.threads) + "\n" +
         (peaks.off(check.threads) > kMemoryWithin ? fix_line(kOtherMemory) : "");
}

int64_t planned_resident(const RanksPlan& plan, const RanksCheck& check) {
  int64_t tensors = 0;
  for (size_t rank = 0; rank < check.ranks.size(); ++rank) {
    const int64_t peak = kind_of_rank(plan, rank).peak;
    tensors = check.threads ? tensors + peak : std::max(tensors, peak);
  }
  const int64_t beside = check.process.of(check.threads ? std::ssize(check.ranks) : 1) + plan.backend_memory;
  return beside + RanksPlan::with_free_memory(tensors);
}

int64_t measured_resident(const RanksCheck& check) {
  int64_t most = 0;
  for (const RealRank& rank : check.ranks) most = std::max(most, rank.resident);
  return check.process.idle + most;
}

// The spread of the times of the steps.
std::string spread_text(const std::vector<double>& steps) {
  if (steps.size() == 1) return "one step";
  char apart[16];
  std::snprintf(apart, sizeof apart, "%.1f %%", 100 * apart_from_itself(steps));
  return seconds_text(at_share(steps, 0.25)) + " to " + seconds_text(at_share(steps, 0.75)) +
         " in the middle half of " + std::to_string(steps.size()) + " steps; odd and even ones " + apart + " apart";
}

// A script has too few steps for a time.
std::string untimed_text(const RanksCheck& check) {
  return "  check time     not measured" + std::string(check.within ? ", so that --within fails" : "") +
         ": the script ended after " + plural(check.ranks.front().steps, "step") +
         ", and the first one that is timed is step " + std::to_string(check.first_timed) + "\n" +
         fix_line("let it make more steps, or look at an earlier one (--steps 1)");
}

std::string checked_time(const RanksPlan& plan, const RanksCheck& check) {
  const std::vector<double> steps = check.step_seconds();
  if (steps.empty()) return untimed_text(check);
  const double measured = at_share(steps, 0.5);
  std::string text = "  check time     ";
  if (plan.time) text += seconds_text(plan.time->step) + " forecast, ";
  text += seconds_text(measured) + " measured (" + spread_text(steps) + ")";
  if (plan.time) text += ": " + off_in_percent(plan.time->step, measured);
  if (!lasts_as_planned(plan, check)) text += ", more than --within";
  text += "\n                 processor time of a rank ";
  if (plan.time) text += seconds_text(plan.time->computing + plan.time->messages) + " forecast, ";
  text += seconds_text(mean_of(check, &RealRank::processor)) + " measured; in collectives ";
  if (plan.time) text += seconds_text(plan.time->messages + plan.time->waiting) + " forecast, ";
  return text + seconds_text(mean_of(check, &RealRank::blocked)) + " measured\n" +
         (lasts_as_planned(plan, check) ? "" : fix_line(kOtherTime));
}

Json search_json(const RanksCheck& check) {
  const Searched& searched = check.ranks.front().searched;
  if (searched.measured == 0) return nullptr;
  return {{"measured", searched.measured}, {"taken", searched.taken}, {"forecast", searched.forecast}};
}

Json checked_verbs(const VerbCounts& counts) {
  Json all = Json::object();
  for (size_t verb = 0; verb < counts.size(); ++verb) {
    if (counts[verb].calls > 0)
      all[name(static_cast<Verb>(verb))] = {
          {"calls", counts[verb].calls}, {"messages", counts[verb].messages}, {"bytes", counts[verb].bytes}};
  }
  return all;
}

}  // namespace

std::vector<double> RanksCheck::step_seconds() const {
  std::vector<double> all;
  for (size_t step = 0; !ranks.empty() && step < ranks[0].seconds.size(); ++step) {
    double slowest = 0;
    for (const RealRank& rank : ranks) {
      if (step < rank.seconds.size()) slowest = std::max(slowest, rank.seconds[step]);
    }
    all.push_back(slowest);
  }
  return all;
}

bool sends_as_planned(const RanksPlan& plan, const RanksCheck& check) {
  for (size_t rank = 0; rank < check.ranks.size(); ++rank) {
    if (plan.counts[rank] != check.ranks[rank].counts) return false;
  }
  return true;
}

bool holds_as_planned(const RanksPlan& plan, const RanksCheck& check) {
  return compared_peaks(plan, check).peaks.off(check.threads) <= kMemoryWithin;
}

bool lasts_as_planned(const RanksPlan& plan, const RanksCheck& check) {
  const std::vector<double> steps = check.step_seconds();
  if (!check.within || !plan.time) return true;
  return !steps.empty() && std::abs(plan.time->step / at_share(steps, 0.5) - 1) <= *check.within;
}

std::string check_text(const RanksPlan& plan, const RanksCheck& check) {
  const int64_t planned = planned_resident(plan, check), measured = measured_resident(check);
  std::string resident;
  if (check.first)
    resident = "  check resident " + bytes_text(planned) + " planned" +
               (check.threads && check.ranks.size() > 1 ? " of all ranks" : "") + ", " + bytes_text(measured) +
               " measured (" + off_in_percent(static_cast<double>(planned), static_cast<double>(measured)) + ")\n";
  return checked_counts(plan, check) + checked_search(check) + checked_memory(plan, check) + resident +
         checked_time(plan, check);
}

Json check_json(const RanksPlan& plan, const RanksCheck& check) {
  const std::vector<double> steps = check.step_seconds();
  const auto share = [&](double of_steps) { return steps.empty() ? Json() : Json(at_share(steps, of_steps)); };
  Json ranks = Json::array();
  for (size_t rank = 0; rank < check.ranks.size(); ++rank) {
    const RealRank& real = check.ranks[rank];
    ranks.push_back(
        {{"steps", real.steps},
         {"planned", checked_verbs(plan.counts[rank])},
         {"counted", checked_verbs(real.counts)},
         {"peak", {{"planned", kind_of_rank(plan, rank).peak}, {"measured", real.peak}}},
         {"peak_of_step", {{"planned", kind_of_rank(plan, rank).in_step.bytes}, {"measured", real.peak_of_step}}}});
  }
  return {{"ranks", ranks},
          {"search", search_json(check)},
          {"sends_as_planned", sends_as_planned(plan, check)},
          {"holds_as_planned", holds_as_planned(plan, check)},
          {"lasts_as_planned", lasts_as_planned(plan, check)},
          {"resident",
           {{"planned", planned_resident(plan, check)},
            {"measured", check.first ? Json(measured_resident(check)) : Json()}}},
          {"step",
           {{"forecast", plan.time ? Json(plan.time->step) : Json()},
            {"median", share(0.5)},
            {"low", share(0.25)},
            {"high", share(0.75)},
            {"apart_from_itself", apart_from_itself(steps)},
            {"processor", mean_of(check, &RealRank::processor)},
            {"blocked", mean_of(check, &RealRank::blocked)},
            {"seconds", steps}}}};
}

}  // namespace moonhalo::scripting
