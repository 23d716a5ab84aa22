// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/profile/profile_summary.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/profile/event_names.h"

namespace moonhalo {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kByNames[] = {"operator", "module", "line", "phase", "rank", "communication"};
constexpr int kFormat = 1;  // of the file; raised when readers of old files would go wrong

// Adds the events of one rank to the tables.
class RankSum {
 public:
  using Rows = std::array<std::unordered_map<std::string, ProfileSummary::Row>, static_cast<size_t>(ProfileBy::kCount)>;

  RankSum(const RankRecord& record, int64_t rank)
      : record_(record), rank_("rank " + std::to_string(rank)), names_(record), self_(self_times(record)) {
    calls_itself_.resize(record.events.size());
    for (const ProfileEvent& event : record.events) {
      const ProfileEvent* const caller = names_.parent(event);
      if (caller != nullptr && EventNames::is_call(event) && caller->name == event.name)
        calls_itself_[event.parent] = true;
    }
  }

  void add_to(ProfileSummary& summary, Rows& rows) {
    for (size_t i = 0; i < record_.events.size(); ++i) {
      if (record_.counts(record_.events[i])) add(i, summary, rows);
    }
  }

 private:
  using Row = ProfileSummary::Row;

  void add(size_t i, ProfileSummary& summary, Rows& rows) {
    const ProfileEvent& event = record_.events[i];
    const int64_t self = self_[i];
    const bool sends = EventNames::is_communication(event), call = EventNames::is_call(event);
    const int64_t macs = event.kind == EventKind::kOperator ? std::max<int64_t>(0, event.value) : 0;
    const auto row = [&](ProfileBy by, const std::string& name) -> Row& {
      Row& found = rows[static_cast<size_t>(by)][name];
      found.self += self;
      found.blocked += sends ? self : 0;
      found.bytes += sends && event.kind != EventKind::kWait ? event.value : 0;
      found.macs += macs;
      found.mac_time += macs > 0 ? event.duration() : 0;
      return found;
    };
    summary.step_time += event.kind == EventKind::kStep ? event.duration() : 0;
    summary.shares[share_of(i)] += self;
    Row& by_rank = row(ProfileBy::kRank, rank_);
    by_rank.total += event.kind == EventKind::kStep ? event.duration() : 0;
    by_rank.calls += event.kind == EventKind::kStep ? 1 : 0;
    Row& by_operator = row(ProfileBy::kOperator, names_.of_operator(event));
    const bool outermost = call && !is_in_call(event);
    const bool counts = call && !is_in_same(event);
    by_operator.calls += counts ? 1 : 0;
    const bool of_call = sends && event.phase != Phase::kCheck && is_in_call(event);
    by_operator.total += counts ? event.duration() : call || of_call ? 0 : self;
    for (Row* one : {&row(ProfileBy::kLine, names_.of_line(event)), &row(ProfileBy::kPhase, name(event.phase))}) {
      one->total += self;
      one->calls += outermost ? 1 : 0;
    }
    Row& by_verb = row(ProfileBy::kCommunication, sends ? record_.names[event.name] : "(computing)");
    by_verb.total += self;
    by_verb.calls += sends ? 1 : 0;
    Row& by_module = row(ProfileBy::kModule, names_.of_module(event));
    by_module.calls += event.kind == EventKind::kModule ? 1 : 0;
    by_module.total += event.module == 0 ? self : 0;
    std::set<std::string> above;  // a module that calls itself counts once
    for (uint16_t module = event.module; module != 0; module = record_.modules[module].parent) {
      const std::string path = names_.module_path(module);
      if (above.insert(path).second) rows[static_cast<size_t>(ProfileBy::kModule)][path].total += self;
    }
  }

  ProfileSummary::Share share_of(size_t i) const {
    const ProfileEvent& event = record_.events[i];
    if (EventNames::is_communication(event)) return ProfileSummary::kBlocked;
    if (event.phase == Phase::kReading) return ProfileSummary::kReading;
    if (event.phase == Phase::kCheck) return ProfileSummary::kDispatch;
    if (!EventNames::is_call(event)) return ProfileSummary::kScript;
    return calls_itself_[i] ? ProfileSummary::kDispatch : ProfileSummary::kKernels;
  }

  bool is_in_call(const ProfileEvent& event) const {
    for (const ProfileEvent* outer = names_.parent(event); outer != nullptr; outer = names_.parent(*outer)) {
      if (EventNames::is_call(*outer)) return true;
    }
    return false;
  }
  // Within a call of the same operator.
  bool is_in_same(const ProfileEvent& event) const {
    for (const ProfileEvent* outer = names_.parent(event); outer != nullptr; outer = names_.parent(*outer)) {
      if (outer->name == event.name && EventNames::is_call(*outer)) return true;
    }
    return false;
  }

  const RankRecord& record_;
  const std::string rank_;
  const EventNames names_;
  const std::vector<int64_t> self_;
  std::vector<bool> calls_itself_;  // on ShardTensors: for the block
};

ProfileSummary::Memory memory_at_peak(const std::vector<RankRecord>& ranks) {
  ProfileSummary::Memory memory;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].memory.peak <= memory.peak) continue;
    const EventNames names(ranks[r]);
    memory = {static_cast<int64_t>(r), ranks[r].memory.peak, {}};
    for (const MemoryRecord::Held& held : ranks[r].memory.at_peak) {
      memory.held.push_back({names.of_place(held.place), held.place.before ? "" : name(held.place.phase), held.bytes});
    }
  }
  std::stable_sort(memory.held.begin(), memory.held.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return memory;
}

std::vector<int64_t> steps_of(const std::vector<RankRecord>& ranks) {
  std::set<int64_t> steps;
  for (const RankRecord& record : ranks) {
    for (const ProfileEvent& event : record.events) {
      if (event.kind == EventKind::kStep && record.counts(event)) steps.insert(event.step);
    }
  }
  return {steps.begin(), steps.end()};
}

}  // namespace

const char* name(ProfileBy by) { return kByNames[static_cast<size_t>(by)]; }

ProfileBy parse_profile_by(const std::string& text) {
  const std::vector<std::string> known(std::begin(kByNames), std::end(kByNames));
  const auto found = std::find(known.begin(), known.end(), text);
  TORCH_CHECK_VALUE(found != known.end(), "profile: no table by '", text, "'", did_you_mean(text, known),
                    "\n  have  \"", text,
                    "\"\n  fix   use \"operator\", \"module\", \"line\", \"phase\", \"rank\" or \"communication\"");
  return static_cast<ProfileBy>(found - known.begin());
}

const char* ProfileSummary::name(Share share) {
  constexpr const char* kNames[kShares] = {"kernels", "blocked", "dispatch", "reading", "script"};
  return kNames[share];
}

std::vector<int64_t> self_times(const RankRecord& record) {
  std::vector<int64_t> self;
  self.reserve(record.events.size());
  for (const ProfileEvent& event : record.events) self.push_back(event.duration());
  for (const ProfileEvent& event : record.events) {
    if (event.parent != ProfileEvent::kNoEvent) self[event.parent] -= event.duration();
  }
  return self;
}

ProfileSummary summarize(const std::vector<RankRecord>& ranks) {
  ProfileSummary summary;
  summary.ranks = std::ssize(ranks);
  summary.steps = steps_of(ranks);
  RankSum::Rows rows;
  for (size_t r = 0; r < ranks.size(); ++r) {
    RankSum(ranks[r], static_cast<int64_t>(r)).add_to(summary, rows);
    if (ranks[r].full) {
      summary.notes.push_back("rank " + std::to_string(r) + " stopped recording after " +
                              std::to_string(ranks[r].events.size()) + " events, in step " +
                              std::to_string(ranks[r].events.back().step) + "; record fewer steps to have all of them");
    }
  }
  summary.skew = find_skew(ranks);
  summary.memory = memory_at_peak(ranks);
  for (size_t by = 0; by < rows.size(); ++by) {
    for (auto& [name, row] : rows[by]) {
      row.name = name;
      summary.tables[by].push_back(row);
    }
    std::sort(summary.tables[by].begin(), summary.tables[by].end(),
              [](const auto& a, const auto& b) { return a.self != b.self ? a.self > b.self : a.name < b.name; });
  }
  return summary;
}

std::string ProfileSummary::to_json() const {
  Json json = {{"format", kFormat}, {"ranks", ranks}, {"steps", steps}, {"step_time_ns", step_time}};
  for (size_t share = 0; share < kShares; ++share) json["shares_ns"][name(static_cast<Share>(share))] = shares[share];
  for (size_t by = 0; by < tables.size(); ++by) {
    Json& list = json["tables"][kByNames[by]] = Json::array();
    for (const Row& row : tables[by])
      list.push_back({{"name", row.name},
                      {"calls", row.calls},
                      {"total_ns", row.total},
                      {"self_ns", row.self},
                      {"blocked_ns", row.blocked},
                      {"sent_bytes", row.bytes},
                      {"macs", row.macs},
                      {"macs_ns", row.mac_time}});
  }
  json["skew"] = Json::array();
  for (const RankSkew& one : skew) {
    Json causes = Json::array();
    for (const RankSkew::Cause& cause : one.causes)
      causes.push_back({{"module", cause.module}, {"what", cause.what}, {"time_ns", cause.time}});
    json["skew"].push_back({{"rank", one.rank}, {"late_ns", one.late}, {"waited_ns", one.waited}, {"causes", causes}});
  }
  json["memory"] = {{"rank", memory.rank}, {"peak_bytes", memory.peak}, {"held", Json::array()}};
  for (const Memory::Held& held : memory.held)
    json["memory"]["held"].push_back({{"module", held.module}, {"part", held.part}, {"bytes", held.bytes}});
  json["notes"] = notes;
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

ProfileSummary ProfileSummary::from_json(const std::string& text, const std::string& where) try {
  const Json json = Json::parse(text);
  ProfileSummary summary;
  TORCH_CHECK_VALUE(json.at("format") == kFormat, "profile: file \"", where,
                    "\" is of another version\n  have  format ", json.at("format").dump(),
                    "\n  fix   read it with the version of Moonhalo that wrote it");
  summary.ranks = json.at("ranks");
  summary.steps = json.at("steps").get<std::vector<int64_t>>();
  summary.step_time = json.at("step_time_ns");
  for (size_t share = 0; share < kShares; ++share)
    summary.shares[share] = json.at("shares_ns").at(name(static_cast<Share>(share)));
  for (size_t by = 0; by < summary.tables.size(); ++by) {
    for (const Json& row : json.at("tables").at(kByNames[by]))
      summary.tables[by].push_back({row.at("name"), row.at("calls"), row.at("total_ns"), row.at("self_ns"),
                                    row.at("blocked_ns"), row.at("sent_bytes"), row.value("macs", int64_t{0}),
                                    row.value("macs_ns", int64_t{0})});
  }
  for (const Json& one : json.at("skew")) {
    RankSkew skew{one.at("rank"), one.at("late_ns"), one.at("waited_ns"), {}};
    for (const Json& cause : one.at("causes"))
      skew.causes.push_back({cause.at("module"), cause.at("what"), cause.at("time_ns")});
    summary.skew.push_back(std::move(skew));
  }
  const Json& memory = json.at("memory");
  summary.memory = {memory.at("rank"), memory.at("peak_bytes"), {}};
  for (const Json& held : memory.at("held"))
    summary.memory.held.push_back({held.at("module"), held.at("part"), held.at("bytes")});
  summary.notes = json.at("notes").get<std::vector<std::string>>();
  return summary;
} catch (const nlohmann::json::exception& error) {
  TORCH_CHECK_VALUE(false, "profile: file \"", where, "\" holds no profile\n  have  ", error.what(),
                    "\n  fix   give the folder that --profile or p:save wrote");
}

}  // namespace moonhalo
