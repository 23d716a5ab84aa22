// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/clocks.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/forecast/costs.h"
#include "moonhalo/engine/forecast/ring_advice.h"
#include "moonhalo/engine/forecast/step_hindrances.h"

namespace moonhalo {
namespace {

/// A call of a group: the number of the group among those of all tapes, and that of the call.
using CallKey = std::pair<uint32_t, uint32_t>;

/// The messages of a rank to a peer in a group, or from it, as one number. Those of a pair of ranks match in order.
/// `offset`: of the peer's rank.
uint64_t line_of(uint32_t group, int32_t offset, bool sends) {
  return uint64_t{group} << 33 | uint64_t{sends} << 32 | static_cast<uint32_t>(offset);
}

/// The group of one tape.
struct ClockGroup {
  uint32_t key = 0;
  std::vector<int64_t> members;
  std::vector<int32_t> kinds;  // of the members, each once
};

/// An exchange that has begun.
struct ClockExchange {
  const TapeExchange* call = nullptr;
  double begin = 0;
  std::vector<uint32_t> numbers;  // of its messages on their lines: of the sends, then of the receives
};

struct ClockKind {
  const Tape* tape = nullptr;
  size_t next = 0;
  double now = 0, link_free = 0, since_wait = 0;
  double core_seconds = 0;  // of work since the last wait
  bool is_forced = false;   // goes on without ranks that do not come
  std::vector<ClockGroup> groups;
  std::map<CallKey, double> arrivals;                          // at collectives, and at the begin of exchanges
  std::unordered_map<uint64_t, std::vector<double>> messages;  // by line: when each was ready
  std::map<uint32_t, ClockExchange> begun;                     // by id
  KindForecast result;
  StepCosts costs;
};

class Clocks {
 public:
  Clocks(const Machine& machine, const RankTapes& tapes, const std::string& backend)
      : machine_(machine),
        tapes_(tapes),
        backend_(backend),
        costs_(machine, backend, static_cast<int64_t>(tapes.kind_of.size())) {
    kinds_.resize(tapes.kinds.size());
    for (size_t i = 0; i < kinds_.size(); ++i) {
      ClockKind& kind = kinds_[i];
      kind.tape = &tapes.kinds[i];
      kind.result.rank = kind.tape->rank;
      kind.result.ranks = std::count(tapes.kind_of.begin(), tapes.kind_of.end(), static_cast<int32_t>(i));
      for (const TapeGroup& group : kind.tape->groups) kind.groups.push_back(clock_group(group, kind.tape->rank));
    }
  }

  StepForecast run() {
    while (advance_all()) {
    }
    StepForecast forecast;
    for (const ClockKind& kind : kinds_) forecast.step = std::max(forecast.step, kind.now);
    const auto all = static_cast<double>(tapes_.kind_of.size());
    std::vector<const StepCosts*> costs;
    for (ClockKind& kind : kinds_) {
      add(kind, ForecastSpan::kWaiting, Phase::kScript, forecast.step);
      const double share = static_cast<double>(kind.result.ranks) / all;
      forecast.computing += share * kind.result.computing;
      forecast.messages += share * kind.result.messages;
      forecast.waiting += share * kind.result.waiting;
      forecast.kinds.push_back(std::move(kind.result));
      costs.push_back(&kind.costs);
    }
    const auto by_computing = [](const KindForecast& a, const KindForecast& b) { return a.computing < b.computing; };
    const auto [least, most] = std::minmax_element(forecast.kinds.begin(), forecast.kinds.end(), by_computing);
    forecast.fastest = least - forecast.kinds.begin();
    forecast.slowest = most - forecast.kinds.begin();
    set_range(forecast, *costs[forecast.slowest]);
    forecast.hindrances =
        step_hindrances(forecast, costs, tapes_, ring_advice(costs_, tapes_.kinds.at(forecast.slowest)));
    forecast.notes = notes(costs);
    return forecast;
  }

 private:
  ClockGroup clock_group(const TapeGroup& group, int64_t rank) {
    ClockGroup made;
    made.key = group_keys_.emplace(group, static_cast<uint32_t>(group_keys_.size())).first->second;
    made.members = group.members(rank);
    std::set<int32_t> kinds;
    for (const int64_t member : made.members) kinds.insert(tapes_.kind_of.at(member));
    made.kinds.assign(kinds.begin(), kinds.end());
    return made;
  }

  // Lets every kind go on as far as it can. Where none can and some have not ended, exchanges are matched by their
  // numbers, too. Where that does not help, their tapes do not fit.
  bool advance_all() {
    bool moved = false, ended = true;
    for (ClockKind& kind : kinds_) {
      while (advance(kind)) moved = true;
      ended = ended && kind.next == kind.tape->events.size();
    }
    if (moved || ended) {
      by_number_ = false;
      return moved && !ended;
    }
    if (!by_number_) return by_number_ = true;
    ClockKind* first = nullptr;
    for (ClockKind& kind : kinds_) {
      const bool waits = kind.next < kind.tape->events.size();
      if (waits && (first == nullptr || kind.now < first->now)) first = &kind;
    }
    first->is_forced = true;
    return true;
  }

  bool advance(ClockKind& kind) {
    if (kind.next == kind.tape->events.size()) return false;
    const TapeEvent& event = kind.tape->events[kind.next];
    const bool done = std::visit([&](const auto& what) { return take(kind, event, what); }, event.what);
    if (done) {
      ++kind.next;
      kind.is_forced = false;
    }
    return done;
  }

  bool take(ClockKind& kind, const TapeEvent& event, const TapeOperator& call) {
    const Cost work = costs_.of_operator(*kind.tape, call);
    const Cost cost = costs_.in_turns(work, kind.core_seconds);
    kind.core_seconds += work.seconds;
    kind.costs.add_operator(*kind.tape, event, call, cost);
    kind.since_wait += cost.seconds;
    add(kind, ForecastSpan::kComputing, event.phase, kind.now + cost.seconds);
    return true;
  }

  bool take(ClockKind& kind, const TapeEvent& event, const TapeVerb& call) {
    const ClockGroup& group = kind.groups.at(call.group);
    const CallKey key{group.key, call.number};
    double last = kind.arrivals.emplace(key, kind.now).first->second;
    for (const int32_t number : group.kinds) {
      const ClockKind& other = kinds_.at(number);
      if (!follows(kind, other, arrival_of(other, key), last)) return false;
    }
    const double delay = lateness(kind, std::ssize(group.members));
    if (group.members.size() > 1) kind.core_seconds = 0;
    add(kind, ForecastSpan::kWaiting, event.phase, std::max(kind.now, last + delay));
    const Cost cost = verb_cost(group, call);
    kind.costs.add_call(call.verb, cause_of(call), call.data, cost);
    add(kind, ForecastSpan::kMessages, event.phase, kind.now + cost.seconds);
    return true;
  }

  bool take(ClockKind& kind, const TapeEvent&, const TapeExchange& call) {
    ClockExchange begun{&call, kind.now, {}};
    const uint32_t group = kind.groups.at(call.group).key;
    kind.arrivals.emplace(CallKey{group, call.number}, kind.now);
    begun.numbers.reserve(call.sends.size() + call.receives.size());
    for (const auto* list : {&call.sends, &call.receives}) {
      for (const TapePart& part : *list) {
        std::vector<double>& times = kind.messages[line_of(group, part.offset, list == &call.sends)];
        begun.numbers.push_back(static_cast<uint32_t>(times.size()));
        times.push_back(kind.now);
      }
    }
    kind.begun[call.id] = std::move(begun);
    return true;
  }

  bool take(ClockKind& kind, const TapeEvent& event, const TapeWait& wait) {
    const auto found = kind.begun.find(wait.id);
    if (found == kind.begun.end() || found->second.numbers.empty()) return true;
    const auto& [pointer, mine, numbers] = found->second;
    const TapeExchange& call = *pointer;
    const ClockGroup& group = kind.groups.at(call.group);
    double last = mine;
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (!follows_message(kind, group.key, call, i, numbers[i], last)) return false;
    }
    const int64_t peers = call.peers();
    const Cost cost = costs_.of_exchange(*kind.tape, call, static_cast<int64_t>(group.members.size()));
    kind.costs.add_call(Verb::kExchange, cause_of(call), bytes_of_exchange(call), cost);
    const double delay = peers == 0 ? 0 : lateness(kind, peers + 1);
    // Had all peers been there when this rank began, it would wait for the messages alone.
    double begin = std::max(last, kind.link_free), in_time = std::max(mine, kind.link_free);
    if (costs_.moves_in_wait()) begin = std::max(begin, kind.now), in_time = std::max(in_time, kind.now);
    const double end = begin + cost.seconds, end_in_time = in_time + cost.seconds;
    kind.link_free = end;
    if (peers > 0 && end > kind.now) kind.core_seconds = 0;
    const double exposed = std::max(0.0, end_in_time - kind.now);
    kind.result.hidden += std::max(0.0, cost.seconds - exposed);
    const double late = std::max(0.0, std::max(end, kind.now) - kind.now - exposed) + delay;
    add(kind, ForecastSpan::kWaiting, event.phase, kind.now + late);
    add(kind, ForecastSpan::kMessages, event.phase, kind.now + exposed);
    return true;
  }

  bool take(ClockKind&, const TapeEvent&, const TapeBlock&) { return true; }

  static int64_t bytes_of_exchange(const TapeExchange& call) {
    int64_t bytes = 0;
    for (const TapePart& part : call.receives) bytes += part.bytes;
    return bytes;
  }

  // True if nothing more comes from `other` before `kind` goes on.
  static bool is_stuck_or_ended(const ClockKind& kind, const ClockKind& other) {
    return kind.is_forced || other.next == other.tape->events.size();
  }

  static const double* arrival_of(const ClockKind& kind, const CallKey& key) {
    const auto found = kind.arrivals.find(key);
    return found == kind.arrivals.end() ? nullptr : &found->second;
  }

  // The time at which the peer of message `i` of an exchange was ready for it, as follows() takes it.
  bool follows_message(const ClockKind& kind, uint32_t group, const TapeExchange& call, size_t i, uint32_t number,
                       double& last) {
    const bool sends = i < call.sends.size();
    const int32_t offset = (sends ? call.sends[i] : call.receives[i - call.sends.size()]).offset;
    const ClockKind& other = kinds_.at(tapes_.kind_of.at(kind.tape->rank + offset));
    const auto line = other.messages.find(line_of(group, -offset, !sends));
    const double* time = line != other.messages.end() && number < line->second.size() ? &line->second[number] : nullptr;
    // The tape of the peer's kind is that of another place of the group, with peers at other offsets: the peer itself
    // begins the same exchange at the time of that rank.
    if (time == nullptr && (by_number_ || is_stuck_or_ended(kind, other)))
      time = arrival_of(other, CallKey{group, call.number});
    return follows(kind, other, time, last);
  }

  // Returns false while `other` has not come to a call, else makes `last` the later one of it and `time`, when it came;
  // null: it did not. A kind that ended without the call is left out.
  bool follows(const ClockKind& kind, const ClockKind& other, const double* time, double& last) {
    if (time != nullptr) {
      last = std::max(last, *time);
    } else if (!is_stuck_or_ended(kind, other)) {
      return false;
    } else {
      misfits_.insert(kind.tape->rank);
    }
    return true;
  }

  double lateness(ClockKind& kind, int64_t ranks) const {
    return machine_.lateness(std::exchange(kind.since_wait, 0.0), ranks);
  }

  const Cost& verb_cost(const ClockGroup& group, const TapeVerb& call) {
    const auto key = std::tuple(group.members.front(), group.key, call.verb, call.data, call.item);
    const auto found = verb_costs_.find(key);
    if (found != verb_costs_.end()) return found->second;
    return verb_costs_[key] = costs_.of_verb(call, group.members);
  }

  static void add(ClockKind& kind, ForecastSpan::Kind what, Phase phase, double end) {
    const double time = end - kind.now;
    if (time <= 0) return;
    double& sum = what == ForecastSpan::kComputing  ? kind.result.computing
                  : what == ForecastSpan::kMessages ? kind.result.messages
                                                    : kind.result.waiting;
    sum += time;
    std::vector<ForecastSpan>& spans = kind.result.spans;
    if (!spans.empty() && spans.back().kind == what && spans.back().phase == phase) {
      spans.back().end = end;
    } else {
      spans.push_back({what, phase, kind.now, end});
    }
    kind.now = end;
  }

  // Errors of one operator or collective are the same in all its calls, those of different ones are not.
  static void set_range(StepForecast& forecast, const StepCosts& costs) {
    const double error = costs.uncertain_seconds();
    forecast.low = std::max(0.0, forecast.step - error);
    forecast.high = forecast.step + error;
  }

  // "ranks 0, 1, 8 and 3 others wait ..."
  std::string misfits_text() const {
    constexpr size_t kMost = 3;
    std::string text = misfits_.size() == 1 ? "rank " : "ranks ";
    size_t shown = 0;
    for (const int64_t rank : misfits_) {
      if (shown == kMost) break;
      text += (shown++ > 0 ? ", " : "") + std::to_string(rank);
    }
    if (shown < misfits_.size())
      text += " and " + std::to_string(misfits_.size() - shown) + (misfits_.size() == shown + 1 ? " other" : " others");
    return text + (misfits_.size() == 1 ? " waits" : " wait") +
           " for calls that no other tape has; that time is left out";
  }

  std::vector<std::string> notes(const std::vector<const StepCosts*>& costs) const {
    std::vector<std::string> notes;
    if (!machine_.measured) notes.push_back("'" + machine_.name + "' was written by hand, not measured");
    if (!machine_.quiet) notes.push_back("'" + machine_.name + "' was measured while other programs ran");
    if (costs_.ranks_per_core() > 1 && backend_ == "mpi")
      notes.push_back(plural(costs_.ranks_of_host(), "rank") + " share " + plural(machine_.host.cores, "core") +
                      ": ranks that wait in MPI take cores from those that compute, which is not predicted; the "
                      "real step is longer");
    std::set<std::string> unknown;
    for (const StepCosts* one : costs) unknown.insert(one->unknown().begin(), one->unknown().end());
    for (const std::string& name : unknown)
      notes.push_back(name + ": it does not report its work; the time is that of its bytes");
    if (!misfits_.empty()) notes.push_back(misfits_text());
    return notes;
  }

  const Machine& machine_;
  const RankTapes& tapes_;
  std::string backend_;
  Costs costs_;
  std::vector<ClockKind> kinds_;
  std::map<TapeGroup, uint32_t> group_keys_;
  std::map<std::tuple<int64_t, uint32_t, Verb, int64_t, uint8_t>, Cost> verb_costs_;
  std::set<int64_t> misfits_;
  bool by_number_ = false;  // no kind could go on
};

}  // namespace

StepForecast forecast_step(const Machine& machine, const RankTapes& tapes, const std::string& backend) {
  TORCH_CHECK_VALUE(!tapes.kinds.empty() && !tapes.kind_of.empty(), "forecast: there are no tapes\n  have  ",
                    tapes.kinds.size(), " kinds, ", tapes.kind_of.size(), " ranks\n  fix   record a step first");
  return Clocks(machine, tapes, backend).run();
}

}  // namespace moonhalo
