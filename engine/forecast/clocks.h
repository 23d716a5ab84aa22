// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moonhalo/engine/forecast/machine.h"
#include "moonhalo/engine/forecast/tape.h"

namespace moonhalo {

/// A part of a rank's step.
struct ForecastSpan {
  /// The rank computes, moves data, or waits for other ranks.
  enum Kind : uint8_t { kComputing, kMessages, kWaiting };
  Kind kind = kComputing;
  Phase phase = Phase::kScript;
  double begin = 0, end = 0;  ///< seconds since the step began
};

/// The step of one kind of ranks.
struct KindForecast {
  int64_t rank = 0;      ///< whose tape it is
  int64_t ranks = 0;     ///< how many ranks are of this kind
  double computing = 0;  ///< seconds in operators
  double messages = 0;   ///< seconds in which data is moved and nothing is computed
  double waiting = 0;    ///< seconds that the rank waits for others, until the last rank has ended
  double hidden = 0;     ///< seconds of messages while the rank computes
  std::vector<ForecastSpan> spans;
};

/// Something that makes the step longer, and the remedy.
struct Hindrance {
  std::string what, fix;  ///< `what` does not give the time
  double seconds = 0;
  int64_t rank = -1;          ///< that has more work than the others; -1: it is of all ranks
  bool more_started = false;  ///< that work is starting more operators, as for edges on more sides
};

/// The forecast of a step. All times are in seconds; computing, messages and waiting are means over all ranks, and
/// their sum is the step.
struct StepForecast {
  double step = 0, low = 0, high = 0;  ///< the step, and its range by the sources of the costs
  double computing = 0, messages = 0, waiting = 0;
  size_t slowest = 0, fastest = 0;  ///< kinds by the time that they compute
  std::vector<KindForecast> kinds;
  std::vector<Hindrance> hindrances;  ///< the worst first; what costs less than 2 % of the step is left out
  std::vector<std::string> notes;     ///< what is not known, and what makes the forecast unsure

  /// The share of the step in which ranks compute. Not collective.
  double efficiency() const { return step > 0 ? computing / step : 1; }
};

/// The time of a step on `machine`, with messages by `backend` ("threads", "mpi", "tcp", "nccl" or "staged"). There is
/// a clock for each kind of ranks. Operators advance it. A collective begins when the last member of the group has
/// arrived. Messages of an exchange go on beside the operators, one exchange after another, until their wait. The
/// slowest of P ranks is jitter sqrt(2 ln P) of the time since its last wait behind the mean. Not collective.
StepForecast forecast_step(const Machine& machine, const RankTapes& tapes, const std::string& backend);

}  // namespace moonhalo
