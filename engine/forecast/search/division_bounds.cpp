// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/search/division_bounds.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>

#include "moonhalo/engine/forecast/costs.h"

namespace moonhalo {

namespace {

// The clock of a rank as in clocks.cpp, to which all others come in time.
class OwnClock {
 public:
  OwnClock(const Machine& machine, const std::string& backend, const Tape& tape)
      : machine_(machine), tape_(tape), costs_(machine, backend, tape.ranks), operators_(costs_, tape) {}

  DivisionBound run() {
    for (const TapeEvent& event : tape_.events) std::visit([this](const auto& what) { take(what); }, event.what);
    bound_.rank = tape_.rank;
    bound_.step = bound_.computing + bound_.messages + bound_.waiting;
    return bound_;
  }

 private:
  struct Begun {
    const TapeExchange* call;
    double begin;
  };

  void take(const TapeOperator& call) {
    const double seconds = operators_.of(call).seconds;
    since_wait_ += seconds;
    add(bound_.computing, seconds);
  }
  void take(const TapeVerb& call) {
    const TapeGroup& group = tape_.groups.at(call.group);
    const auto [found, is_new] = verbs_.try_emplace({call.group, call.verb, call.data, call.item});
    if (is_new) found->second = costs_.of_verb(call, group.members(tape_.rank)).seconds;
    add(bound_.waiting, machine_.lateness(std::exchange(since_wait_, 0.0), group.size()));
    add(bound_.messages, found->second);
  }
  void take(const TapeExchange& call) { begun_[call.id] = {&call, now_}; }
  void take(const TapeWait& wait) {
    const auto found = begun_.extract(wait.id);
    if (found.empty() || (found.mapped().call->sends.empty() && found.mapped().call->receives.empty())) return;
    const auto [call, begun] = found.mapped();
    const double begin = std::max({begun, link_free_, costs_.moves_in_wait() ? now_ : 0});
    link_free_ = begin + costs_.of_exchange(tape_, *call, tape_.groups.at(call->group).size()).seconds;
    add(bound_.messages, std::max(0.0, link_free_ - now_));
    const int64_t peers = call->peers();
    if (peers > 0) add(bound_.waiting, machine_.lateness(std::exchange(since_wait_, 0.0), peers + 1));
  }
  void take(const TapeBlock&) {}

  void add(double& part, double seconds) {
    part += seconds;
    now_ += seconds;
  }

  const Machine& machine_;
  const Tape& tape_;
  const Costs costs_;
  OperatorCosts operators_;
  std::unordered_map<uint32_t, Begun> begun_;  // by id
  std::map<std::tuple<uint32_t, Verb, int64_t, uint8_t>, double>
      verbs_;  // seconds by group, verb, bytes, of an element
  double now_ = 0, link_free_ = 0, since_wait_ = 0;
  DivisionBound bound_;
};

}  // namespace

DivisionBound least_step(const Machine& machine, const std::string& backend, const Tape& tape) {
  return OwnClock(machine, backend, tape).run();
}

int64_t least_memory(const WholeStep& whole, const Division& division, int64_t blocks) {
  // The largest stage of a pipeline has at least its share of the parameters. All ranks may share the rest that stays
  // after a step, such as a field that the program keeps.
  const int64_t stored = division.is_stored ? division.data : 1;
  return 2 * whole.parameters / (division.tensor * division.stages * stored * blocks) +
         whole.states / (division.ranks() * blocks);
}

}  // namespace moonhalo
