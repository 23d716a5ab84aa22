// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "moonhalo/engine/forecast/clocks.h"
#include "moonhalo/engine/forecast/costs.h"
#include "moonhalo/engine/forecast/message_cause.h"

namespace moonhalo {

/// The parts of the step of one kind of ranks. Nothing of this file is collective.
class StepCosts {
 public:
  /// The calls of one cause, and those of them of at most 64 KiB.
  struct CallSum {
    int64_t calls = 0, small_calls = 0, bytes = 0;
    double seconds = 0, latency = 0;
  };

  void add_operator(const Tape& tape, const TapeEvent& event, const TapeOperator& call, const Cost& cost);
  void add_call(Verb verb, const MessageCause& cause, int64_t bytes, const Cost& cost);

  /// Seconds by which the sum of all costs may be wrong: those of one name add up, the names add in squares.
  double uncertain_seconds() const;
  const std::set<std::string>& unknown() const { return unknown_; }
  const std::map<MessageCause, CallSum>& calls() const { return calls_; }
  int64_t operators() const { return operators_; }
  double launches() const { return launches_; }
  /// Seconds of operators by their names, and by modules.
  const std::map<std::string, double>& by_name() const { return by_name_; }
  const std::map<std::string, double>& by_module() const { return by_module_; }

 private:
  std::map<std::string, double> by_name_, by_module_, errors_;
  std::map<MessageCause, CallSum> calls_;
  std::set<std::string> unknown_;
  int64_t operators_ = 0;
  double launches_ = 0;
};

/// Lists what makes the step longer than its work, the worst first. `costs`: of each kind. `ring`: of ring_advice.h.
std::vector<Hindrance> step_hindrances(const StepForecast& forecast, const std::vector<const StepCosts*>& costs,
                                       const RankTapes& tapes, const std::optional<Hindrance>& ring);

}  // namespace moonhalo
