// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/program/plan_report.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/profile/memory_note.h"
#include "moonhalo/scripting/program/plan_limits.h"

namespace moonhalo::scripting {
namespace {

using Json = nlohmann::ordered_json;

// "mesh rows 8 x columns 8"
std::string mesh_text(const RankKinds& found) {
  if (found.meshes.empty()) return "no tensor on a mesh";
  const RankTapes& tapes = found.tapes;
  std::string text = "mesh";
  for (size_t d = 0; d < tapes.mesh.size(); ++d)
    text += (d > 0 ? " x " : " ") + tapes.mesh_dims[d] + " " + std::to_string(tapes.mesh[d]);
  return text;
}

std::string steps_text(const RanksPlan& plan) {
  const auto& runs = plan.found.runs;
  const auto [least, most] =
      std::minmax_element(runs.begin(), runs.end(), [](const auto& a, const auto& b) { return a.steps < b.steps; });
  if (most->steps == 0) return "no step of an optimizer: the whole script counts as one";
  std::string text = "step " + std::to_string(least->steps);
  const bool steady = std::all_of(runs.begin(), runs.end(), [](const RankRun& run) { return run.steady; });
  if (!steady) text += " (the one before did something else: steps vary)";
  return text;
}

std::string kinds_text(const RanksPlan& plan) {
  std::string text =
      plural(std::ssize(plan.kinds), "kind") + " of ranks, by " + plural(std::ssize(plan.found.run), "dry run");
  if (plan.found.checked == 0) return text;
  text += ", " + std::to_string(plan.found.checked) + " of them drawn to compare";
  if (!plan.found.unlike.empty())
    text += ": " + plural(std::ssize(plan.found.unlike), "rank") + " not as its kind, so other ranks are nearly right";
  return text;
}

// Says where the ranks are and what sends their messages. One rank alone sends none.
std::string assumed_line(const PlanSubject& subject, const RanksPlan& plan) {
  std::string text;
  if (plan.time) {
    const int64_t hosts = (plan.ranks + plan.hosts.ranks - 1) / plan.hosts.ranks;
    text = "'" + subject.machine + "': " + plural(std::min(plan.ranks, plan.hosts.ranks), "rank") + " on " +
           (hosts > 1 ? "each of " + plural(hosts, "host") : "a host") +
           (plan.hosts.cores > 0 ? " of " + plural(plan.hosts.cores, "core") : "");
  }
  if (plan.ranks > 1)
    text += (text.empty() ? "" : "; ") + std::string("ranks are ") +
            (plan.backend == "threads" ? "threads of one process" : "processes; messages by " + plan.backend);
  return text.empty() ? "" : "  assumed        " + text + "\n";
}

std::string memory_lines(const RanksPlan& plan, int64_t base) {
  const RanksPlan::Kind &most = plan.largest(), &least = plan.smallest();
  const Tape& tape = plan.found.tapes.kinds[&most - plan.kinds.data()];
  std::string text =
      "  memory         " + bytes_text(most.peak) + " of tensors at the peak on " + plan.rank_text(most.ranks.front());
  if (&most != &least) text += ", least " + bytes_text(least.peak) + " on " + plan.rank_text(least.ranks.front());
  text += "\n                 the peak is ";
  if (most.peak > most.in_step.bytes + most.in_step.bytes / 100)
    text += "before the step; that of the step is " + bytes_text(most.in_step.bytes) + ", ";
  text += "in " + place_text(tape, most.in_step.module, most.in_step.phase);
  for (size_t i = 0; i < most.in_step.held.size() && i < 3; ++i) {
    const TapePeak::Held& held = most.in_step.held[i];
    text += (i > 0 ? "; " : "; held then: ") + bytes_text(held.bytes) + " made " +
            (held.before ? "before the step" : "in " + place_text(tape, held.module, held.phase));
  }
  text += "\n  resident       " + bytes_text(plan.resident(most, base)) +
          " with libraries, generated code and free memory (" + bytes_text(base) +
          (plan.backend == "threads" ? " of the process, which all ranks share" : " of each process") +
          (plan.backend_memory > 0 ? ", " + bytes_text(plan.backend_memory) + " of MPI" : "") + ")\n";
  return text;
}

std::string calls_text(const VerbCounts& counts) {
  std::string text;
  for (size_t verb = 0; verb < counts.size(); ++verb) {
    if (counts[verb].calls == 0) continue;
    text += (text.empty() ? "" : ", ") + std::to_string(counts[verb].calls) + " " + name(static_cast<Verb>(verb));
  }
  return text;
}

std::string sent_lines(const RanksPlan& plan) {
  const auto by_bytes = [](const VerbCounts& a, const VerbCounts& b) {
    return std::pair(total(a).bytes, total(a).messages) < std::pair(total(b).bytes, total(b).messages);
  };
  const auto least = std::min_element(plan.counts.begin(), plan.counts.end(), by_bytes),
             most = std::max_element(plan.counts.begin(), plan.counts.end(), by_bytes);
  const VerbCount all = total(*most), few = total(*least);
  if (all.calls == 0) return "  sent           nothing\n";
  std::string text = "  sent           " + bytes_text(all.bytes) + " in " + plural(all.messages, "message") + " by " +
                     plan.rank_text(most - plan.counts.begin());
  if (few != all)
    text += ", least " + bytes_text(few.bytes) + " in " + std::to_string(few.messages) + " by " +
            plan.rank_text(least - plan.counts.begin());
  return text + "\n                 calls of that rank: " + calls_text(*most) + "\n";
}

std::string limit_lines(const char* title, const std::vector<RanksPlan::Limit>& limits) {
  if (limits.empty()) return "";
  std::string text = title;
  text.resize(17, ' ');
  return text + limits[0].what + "\n                 fix   " + limits[0].fix + "\n";
}

std::set<std::string> unknown_of(const RanksPlan& plan) {
  std::set<std::string> names;
  for (const Tape& tape : plan.found.tapes.kinds) names.merge(unknown_work(tape));
  return names;
}

std::string time_lines(const RanksPlan& plan) {
  if (!plan.time) return "";
  const StepForecast& time = *plan.time;
  char share[16];
  std::snprintf(share, sizeof share, "%.2f", time.efficiency());
  std::string text = "  step           " + seconds_text(time.step) + " (" + seconds_text(time.low) + " to " +
                     seconds_text(time.high) + "): computing " + seconds_text(time.computing) + ", messages " +
                     seconds_text(time.messages) + ", waiting " + seconds_text(time.waiting) + "; efficiency " + share +
                     "\n";
  for (size_t i = 0; i < time.hindrances.size() && i < 3; ++i) {
    const Hindrance& one = time.hindrances[i];
    text += (i == 0 ? "  time first     " : "  then           ") + seconds_text(one.seconds) + ": " + one.what +
            "\n                 fix   " + one.fix + "\n";
  }
  for (const std::string& note : time.notes) text += "  note           " + note + "\n";
  return text;
}

std::string table(const std::vector<RanksPlan>& plans, int64_t base) {
  std::string text;
  const auto row = [&](const char* title, const auto& value) {
    char cell[40];
    std::snprintf(cell, sizeof cell, "  %-22s", title);
    text += cell;
    for (const RanksPlan& plan : plans) {
      std::snprintf(cell, sizeof cell, "%12s", std::string(value(plan)).c_str());
      text += cell;
    }
    text += "\n";
  };
  const auto most = [](const RanksPlan& plan, int64_t VerbCount::*what) {
    int64_t largest = 0;
    for (const VerbCounts& counts : plan.counts) largest = std::max(largest, total(counts).*what);
    return largest;
  };
  row("ranks", [](const RanksPlan& plan) { return std::to_string(plan.ranks); });
  if (plans.front().time) row("messages by", [](const RanksPlan& plan) { return plan.backend; });
  row("memory, largest rank", [](const RanksPlan& plan) { return bytes_text(plan.largest().peak); });
  row("memory, smallest rank", [](const RanksPlan& plan) { return bytes_text(plan.smallest().peak); });
  row("resident, largest", [&](const RanksPlan& plan) { return bytes_text(plan.resident(plan.largest(), base)); });
  row("sent, most of a rank", [&](const RanksPlan& plan) { return bytes_text(most(plan, &VerbCount::bytes)); });
  row("messages, most", [&](const RanksPlan& plan) { return std::to_string(most(plan, &VerbCount::messages)); });
  if (plans.front().time) {
    row("step", [](const RanksPlan& plan) { return seconds_text(plan.time->step); });
    row("ranks x step",
        [](const RanksPlan& plan) { return seconds_text(static_cast<double>(plan.ranks) * plan.time->step); });
  }
  return text;
}

// Multiplications with additions of a tape's operators, and bytes that they read and write.
std::pair<int64_t, int64_t> work_of(const Tape& tape) {
  std::pair<int64_t, int64_t> sums{0, 0};
  for (const TapeEvent& event : tape.events) {
    const auto* call = std::get_if<TapeOperator>(&event.what);
    if (call == nullptr) continue;
    sums.first += call->times * call->macs;
    sums.second += call->times * call->bytes;
  }
  return sums;
}

// Time and memory if those of the first plan went with the work of a rank.
Json ideal_json(const RanksPlan& first, const RanksPlan& plan) {
  const double share = plan.work() / std::max(first.work(), 1.0);
  Json ideal{{"memory", share * static_cast<double>(first.largest().peak)}};
  if (first.time) ideal["step"] = share * first.time->step;
  return ideal;
}

Json kind_json(const RanksPlan& plan, size_t number, int64_t base) {
  const RanksPlan::Kind& kind = plan.kinds[number];
  const Tape& tape = plan.found.tapes.kinds[number];
  Json held = Json::array();
  for (const TapePeak::Held& one : kind.in_step.held) {
    held.push_back({{"module", tape.modules.at(one.module)},
                    {"phase", one.before ? "before" : name(one.phase)},
                    {"bytes", one.bytes}});
  }
  const auto [macs, bytes] = work_of(tape);
  return {{"first_rank", kind.ranks.front()},
          {"ranks", kind.ranks.size()},
          {"peak", kind.peak},
          {"resident", plan.resident(kind, base)},
          {"peak_of_step", kind.in_step.bytes},
          {"peak_module", tape.modules.at(kind.in_step.module)},
          {"peak_phase", name(kind.in_step.phase)},
          {"held_at_peak", held},
          {"macs", macs},
          {"operator_bytes", bytes},
          {"optimizer_memory", tape.optimizer},
          {"steps", plan.found.runs[number].steps},
          {"steady", plan.found.runs[number].steady}};
}

Json ranks_json(const RanksPlan& plan) {
  Json all = Json::array();
  for (size_t rank = 0; rank < plan.counts.size(); ++rank) {
    Json verbs = Json::object();
    for (size_t verb = 0; verb < plan.counts[rank].size(); ++verb) {
      const VerbCount& count = plan.counts[rank][verb];
      if (count.calls > 0)
        verbs[name(static_cast<Verb>(verb))] = {
            {"calls", count.calls}, {"messages", count.messages}, {"bytes", count.bytes}};
    }
    all.push_back({{"kind", plan.found.tapes.kind_of[rank]}, {"sent", verbs}});
  }
  return all;
}

Json limits_json(const std::vector<RanksPlan::Limit>& limits) {
  Json all = Json::array();
  for (const RanksPlan::Limit& limit : limits) all.push_back({{"what", limit.what}, {"fix", limit.fix}});
  return all;
}

Json time_json(const std::optional<StepForecast>& time) {
  if (!time) return nullptr;
  Json hindrances = Json::array();
  for (const Hindrance& one : time->hindrances)
    hindrances.push_back({{"what", one.what}, {"fix", one.fix}, {"seconds", one.seconds}});
  return {{"step", time->step},           {"low", time->low},           {"high", time->high},
          {"computing", time->computing}, {"messages", time->messages}, {"waiting", time->waiting},
          {"hindrances", hindrances},     {"notes", time->notes},       {"efficiency", time->efficiency()}};
}

}  // namespace

std::string RanksPlan::rank_text(int64_t rank) const {
  std::string text = "rank " + std::to_string(rank);
  if (found.meshes.empty() || ranks == 1) return text;
  const SeenMesh& mesh = found.meshes[0];
  const std::vector<int64_t> at = mesh.coordinates(rank);
  if (at.size() == 1) return text;
  std::string place;
  for (size_t d = 0; d < at.size(); ++d) place += (d > 0 ? ", " : "") + mesh.names[d] + " " + std::to_string(at[d]);
  return text + " (" + place + ")";
}

const RanksPlan::Kind& RanksPlan::largest() const {
  return *std::max_element(kinds.begin(), kinds.end(), [](const Kind& a, const Kind& b) { return a.peak < b.peak; });
}

const RanksPlan::Kind& RanksPlan::smallest() const {
  return *std::min_element(kinds.begin(), kinds.end(), [](const Kind& a, const Kind& b) { return a.peak < b.peak; });
}

double RanksPlan::work() const {
  double macs = 0, bytes = 0;
  for (size_t k = 0; k < kinds.size(); ++k) {
    const auto of_kind = work_of(found.tapes.kinds[k]);
    macs += static_cast<double>(of_kind.first) * static_cast<double>(kinds[k].ranks.size());
    bytes += static_cast<double>(of_kind.second) * static_cast<double>(kinds[k].ranks.size());
  }
  return (macs > 0 ? macs : bytes) / static_cast<double>(ranks);
}

RanksPlan summarize_ranks(int64_t ranks, RankKinds found) {
  RanksPlan plan;
  plan.ranks = ranks;
  plan.found = std::move(found);
  const RankTapes& tapes = plan.found.tapes;
  plan.kinds.resize(tapes.kinds.size());
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int32_t kind = tapes.kind_of[rank];
    plan.kinds[kind].ranks.push_back(rank);
  }
  plan.counts = counts_of_ranks(tapes);
  for (size_t k = 0; k < plan.kinds.size(); ++k) {
    plan.kinds[k].peak = plan.found.runs[k].peak;
    plan.kinds[k].in_step = peak_of(tapes.kinds[k]);
  }
  find_limits(plan);
  return plan;
}

std::string ranks_text(const PlanSubject& subject, const RanksPlan& plan) {
  std::string text = std::filesystem::path(subject.script).filename().string() + " on " + plural(plan.ranks, "rank") +
                     ": " + mesh_text(plan.found) + ", " + steps_text(plan) + "\n";
  text += "  kinds          " + kinds_text(plan) + "\n" + assumed_line(subject, plan);
  text += time_lines(plan) + memory_lines(plan, subject.base) + sent_lines(plan);
  if (plan.check) text += check_text(plan, *plan.check);
  text += limit_lines("  memory first", plan.memory) + limit_lines("  messages first", plan.messages) +
          limit_lines("  empty blocks", plan.empty);
  std::string unknown;
  for (const std::string& one : unknown_of(plan)) unknown += (unknown.empty() ? "" : ", ") + one;
  if (!unknown.empty()) text += "  not known      the work of " + unknown + "\n";
  return text + "\n";
}

std::string comparison_text(const PlanSubject& subject, const std::vector<RanksPlan>& plans) {
  return plans.size() > 1 ? table(plans, subject.base) : "";
}

std::string plan_json(const PlanSubject& subject, const std::vector<RanksPlan>& plans,
                      const std::vector<int>& missing) {
  Json all = {{"script", subject.script}, {"base_resident", subject.base}, {"missing", missing}};
  if (!subject.machine.empty()) all["machine"] = subject.machine;
  all["plans"] = Json::array();
  for (const RanksPlan& plan : plans) {
    Json kinds = Json::array();
    for (size_t k = 0; k < plan.kinds.size(); ++k) kinds.push_back(kind_json(plan, k, subject.base));
    all["plans"].push_back({{"ranks", plan.ranks},
                            {"backend", plan.backend},
                            {"mesh", plan.found.tapes.mesh},
                            {"mesh_dims", plan.found.tapes.mesh_dims},
                            {"ran", plan.found.run},
                            {"drawn", plan.found.checked},
                            {"unlike", plan.found.unlike},
                            {"kinds", kinds},
                            {"of_rank", ranks_json(plan)},
                            {"memory", limits_json(plan.memory)},
                            {"messages", limits_json(plan.messages)},
                            {"empty_blocks", limits_json(plan.empty)},
                            {"time", time_json(plan.time)},
                            {"check", plan.check ? check_json(plan, *plan.check) : Json()},
                            {"ideal", ideal_json(plans.front(), plan)},
                            {"not_known", unknown_of(plan)}});
  }
  return all.dump(1) + "\n";
}

}  // namespace moonhalo::scripting
