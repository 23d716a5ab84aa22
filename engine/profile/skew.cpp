// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/profile/skew.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/profile/event_names.h"
#include "moonhalo/engine/profile/matched_calls.h"

namespace moonhalo {
namespace {

using Where = std::pair<std::string, std::string>;  // module, operator
using TimeBy = std::map<uint32_t, int64_t>;         // by the number of a Where

constexpr uint32_t kWaiting = 0;

// Numbers of modules and operators, the same for all ranks.
class Places {
 public:
  uint32_t number(const Where& where) {
    const auto [found, added] = numbers_.try_emplace(where, static_cast<uint32_t>(all_.size()));
    if (added) all_.push_back(where);
    return found->second;
  }
  const Where& operator[](uint32_t number) const { return all_[number]; }

 private:
  std::vector<Where> all_ = {{"", ""}};  // kWaiting
  std::map<Where, uint32_t> numbers_;
};

// One rank's events by the clock of rank 0: which one is the innermost at any time.
class Timeline {
 public:
  Timeline(const RankRecord& record, Places& places) {
    const EventNames names(record);
    std::map<std::tuple<EventKind, Phase, uint16_t, uint32_t>, uint32_t> known;
    const auto place_of = [&](const ProfileEvent& event) {
      if (EventNames::is_communication(event)) return kWaiting;
      const auto [found, added] = known.try_emplace({event.kind, event.phase, event.module, event.name}, kWaiting);
      if (added) found->second = places.number({names.of_module(event), names.of_operator(event)});
      return found->second;
    };
    std::vector<uint32_t> open;
    int64_t now = record.events.empty() ? 0 : record.events.front().begin;
    const auto pass = [&](int64_t until) {
      if (!open.empty() && until > now)
        segments_.push_back(
            {now + record.clock_offset, until + record.clock_offset, place_of(record.events[open.back()])});
      now = std::max(now, until);
    };
    for (uint32_t i = 0; i < record.events.size(); ++i) {
      while (!open.empty() && open.back() != record.events[i].parent) {
        pass(record.events[open.back()].end);
        open.pop_back();
      }
      pass(record.events[i].begin);
      open.push_back(i);
    }
    for (; !open.empty(); open.pop_back()) pass(record.events[open.back()].end);
  }

  int64_t begin() const { return segments_.empty() ? 0 : segments_.front().begin; }

  TimeBy between(int64_t from, int64_t to) const {
    TimeBy times;
    auto segment = std::lower_bound(segments_.begin(), segments_.end(), from,
                                    [](const Segment& one, int64_t time) { return one.end <= time; });
    for (; segment != segments_.end() && segment->begin < to; ++segment)
      times[segment->place] += std::min(segment->end, to) - std::max(segment->begin, from);
    return times;
  }

 private:
  struct Segment {
    int64_t begin, end;
    uint32_t place;
  };
  std::vector<Segment> segments_;
};

// A rank's part in a call that several ranks make, by the clock of rank 0.
struct Arrival {
  size_t rank;
  int64_t at;                                       // it came
  std::optional<std::pair<int64_t, int64_t>> wait;  // from, to
  std::vector<size_t> receives;                     // ranks that send to it, of an exchange
  bool is_exchange;
};

class SkewFinder {
 public:
  explicit SkewFinder(const std::vector<RankRecord>& ranks) : ranks_(ranks), matched_(ranks), skew_(ranks.size()) {
    for (size_t r = 0; r < ranks.size(); ++r) {
      timelines_.emplace_back(ranks[r], places_);
      skew_[r].rank = static_cast<int64_t>(r);
    }
  }

  std::vector<RankSkew> find() {
    struct Call {
      uint64_t group;
      std::vector<Arrival> arrivals;
    };
    std::vector<Call> calls;
    for (const auto& [key, parts] : matched_.all()) {
      Call call{key.group, {}};
      for (const MatchedCalls::Part& part : parts) add_arrival(part, call.arrivals);
      if (!call.arrivals.empty()) calls.push_back(std::move(call));
    }
    std::stable_sort(calls.begin(), calls.end(),
                     [](const Call& a, const Call& b) { return a.arrivals.front().at < b.arrivals.front().at; });
    for (const Call& call : calls) match(call.group, call.arrivals);
    for (size_t r = 0; r < skew_.size(); ++r) {
      for (const auto& [place, time] : causes_[r])
        skew_[r].causes.push_back({places_[place].first, places_[place].second, time});
      std::stable_sort(skew_[r].causes.begin(), skew_[r].causes.end(),
                       [](const auto& a, const auto& b) { return a.time > b.time; });
    }
    return std::move(skew_);
  }

 private:
  struct Late {
    int64_t time = 0;
    TimeBy causes;
  };
  struct LastCall {
    int64_t of_waiting, of_other;  // when both had last been at the same call
  };

  void add_arrival(const MatchedCalls::Part& part, std::vector<Arrival>& arrivals) const {
    const RankRecord& record = ranks_[part.rank];
    const RankRecord::CommCall& call = record.calls[part.call];
    const ProfileEvent& event = record.events[call.event];
    if (!record.counts(event)) return;
    Arrival arrival{part.rank, event.begin + record.clock_offset, std::nullopt, {}, call.verb == CommStats::kExchange};
    for (const uint32_t m : matched_.messages_of(part)) {
      const auto peer = matched_.world_rank(call.group, record.messages[m].peer);
      if (record.messages[m].sent == 0 && peer) arrival.receives.push_back(*peer);
    }
    const auto waited = arrival.is_exchange ? matched_.wait_of(part) : std::optional(call.event);
    if (waited) {
      const ProfileEvent& wait = record.events[*waited];
      arrival.wait = {wait.begin + record.clock_offset, wait.end + record.clock_offset};
    }
    arrivals.push_back(std::move(arrival));
  }

  // One call, made by all the ranks that are in `arrivals`.
  void match(uint64_t group, const std::vector<Arrival>& arrivals) {
    std::map<size_t, Late> late;
    for (const Arrival& mine : arrivals) {
      const Arrival* last = last_needed(arrivals, mine);
      if (last == nullptr) continue;
      const int64_t time = std::min(mine.wait->second, last->at) - mine.wait->first;
      skew_[mine.rank].waited += time;
      Late here = explain(group, mine, *last, time);
      if (here.time > late[last->rank].time) late[last->rank] = std::move(here);
    }
    for (const auto& [rank, one] : late) {
      skew_[rank].late += one.time;
      for (const auto& [place, time] : one.causes) causes_[rank][place] += time;
    }
    for (const Arrival& mine : arrivals) note_calls(group, arrivals, mine);
  }

  static bool needs(const Arrival& mine, const Arrival& other) {
    if (other.rank == mine.rank) return false;
    return !mine.is_exchange ||
           std::find(mine.receives.begin(), mine.receives.end(), other.rank) != mine.receives.end();
  }

  // The last rank that `mine` waited for, or null.
  static const Arrival* last_needed(const std::vector<Arrival>& arrivals, const Arrival& mine) {
    if (!mine.wait) return nullptr;
    const Arrival* last = nullptr;
    for (const Arrival& other : arrivals) {
      if (!needs(mine, other) || other.at <= mine.wait->first || other.at > mine.wait->second) continue;
      if (last == nullptr || other.at > last->at) last = &other;
    }
    return last;
  }

  // Divides `time` by what the late rank did longer than the waiting one since both made the same call before. Its own
  // waiting is left out.
  Late explain(uint64_t group, const Arrival& mine, const Arrival& last, int64_t time) const {
    Late late;
    const LastCall before = last_call(group, mine.rank, last.rank);
    const TimeBy theirs = timelines_[last.rank].between(before.of_other, last.at);
    TimeBy own = timelines_[mine.rank].between(before.of_waiting, mine.wait->first);
    int64_t more = 0;
    for (const auto& [place, spent] : theirs) more += std::max<int64_t>(0, spent - own[place]);
    for (const auto& [place, spent] : theirs) {
      const int64_t excess = spent - own[place];
      if (excess <= 0 || place == kWaiting) continue;
      const auto share =
          static_cast<int64_t>(static_cast<double>(time) * static_cast<double>(excess) / static_cast<double>(more));
      late.causes[place] += share;
      late.time += share;
    }
    return late;
  }

  LastCall last_call(uint64_t group, size_t waiting, size_t other) const {
    LastCall last{timelines_[waiting].begin(), timelines_[other].begin()};
    const auto pair = exchanged_.find({waiting, other});
    if (pair != exchanged_.end()) last = pair->second;
    const auto collective = left_.find(group);
    if (collective == left_.end()) return last;
    const auto one = collective->second.find(waiting), two = collective->second.find(other);
    if (one == collective->second.end() || two == collective->second.end()) return last;
    return one->second > last.of_waiting ? LastCall{one->second, two->second} : last;
  }

  void note_calls(uint64_t group, const std::vector<Arrival>& arrivals, const Arrival& mine) {
    if (!mine.wait) return;
    if (!mine.is_exchange) {
      left_[group][mine.rank] = mine.wait->second;
      return;
    }
    for (const Arrival& other : arrivals) {
      if (needs(mine, other)) exchanged_[{mine.rank, other.rank}] = {mine.wait->second, other.at};
    }
  }

  const std::vector<RankRecord>& ranks_;
  const MatchedCalls matched_;
  std::vector<RankSkew> skew_;
  Places places_;
  std::vector<Timeline> timelines_;
  std::map<std::pair<size_t, size_t>, LastCall> exchanged_;
  std::map<uint64_t, std::map<size_t, int64_t>> left_;  // collectives: the end of the last one of each rank
  std::map<size_t, TimeBy> causes_;
};

std::string milliseconds_text(int64_t nanoseconds, int64_t steps) {
  char text[40];
  std::snprintf(text, sizeof text, "%.1f ms", static_cast<double>(nanoseconds) / 1e6 / static_cast<double>(steps));
  return text;
}

std::string share_text(int64_t part, int64_t whole) { return std::to_string((100 * part + whole / 2) / whole) + " %"; }

std::string in_module(const std::string& module) { return module.empty() ? "(script)" : module; }

}  // namespace

std::vector<RankSkew> find_skew(const std::vector<RankRecord>& ranks) { return SkewFinder(ranks).find(); }

std::string latest_rank(const std::vector<RankSkew>& skew, int64_t steps) {
  const auto latest =
      std::max_element(skew.begin(), skew.end(), [](const auto& a, const auto& b) { return a.late < b.late; });
  if (latest == skew.end() || latest->late <= 0) return "";
  std::map<std::string, int64_t> modules;
  for (const RankSkew::Cause& cause : latest->causes) modules[cause.module] += cause.time;
  std::string text = "rank " + std::to_string(latest->rank) + " is " +
                     milliseconds_text(latest->late, std::max<int64_t>(1, steps)) + " late";
  if (modules.empty()) return text;
  const auto most = std::max_element(modules.begin(), modules.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return text + ", " + share_text(most->second, latest->late) + " of it in " + in_module(most->first);
}

std::string skew_text(const std::vector<RankSkew>& skew, int64_t steps) {
  constexpr size_t kMostCauses = 8;
  const int64_t count = std::max<int64_t>(1, steps);
  std::string text = "Of a step: how late each rank came to calls that others waited in, and where it was meanwhile.\n";
  for (const RankSkew& one : skew) {
    text += "rank " + std::to_string(one.rank) + "  late " + milliseconds_text(one.late, count) + ", waited " +
            milliseconds_text(one.waited, count) + "\n";
    for (size_t i = 0; i < one.causes.size() && i < kMostCauses; ++i) {
      const RankSkew::Cause& cause = one.causes[i];
      text += "        " + milliseconds_text(cause.time, count) + "  " + share_text(cause.time, one.late) + "  " +
              in_module(cause.module) + ": " + cause.what + "\n";
    }
  }
  return text;
}

}  // namespace moonhalo
