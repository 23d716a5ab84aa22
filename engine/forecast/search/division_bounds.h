// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moonhalo/engine/forecast/costs.h"
#include "moonhalo/engine/forecast/machine.h"
#include "moonhalo/engine/forecast/search/division.h"
#include "moonhalo/engine/forecast/tape.h"

namespace moonhalo {

/// A step of the whole model on one rank, and what divisions of it must hold and sum.
struct WholeStep {
  Tape tape;
  int64_t parameters = 0;  ///< bytes of what is trained
  int64_t states = 0;      ///< bytes that a step leaves besides gradients: what the optimizer keeps
};

/// Bounds below which a division cannot be.
struct DivisionBound {
  double computing = 0;  ///< seconds: the whole work at the machine's best rates, on all ranks evenly
  double messages = 0;   ///< seconds: sums of gradients, and parameters in blocks that are gathered
  double step = 0;       ///< seconds of both; the longer one where messages go on beside the operators
  int64_t memory = 0;    ///< bytes of a rank: parameters, gradients, states
};

/// Lower bounds of divisions by arithmetic alone, for a machine, `units` equal copies of the divided model, and
/// messages by `backend`. They leave out launches, latency, halos, activations, what is sent between stages, and all
/// waiting. The machine and the step must outlive it. Not collective.
class DivisionBounds {
 public:
  DivisionBounds(const Machine& machine, const std::string& backend, const WholeStep& whole, int64_t ranks,
                 int64_t units);
  DivisionBound of(const Division& division) const;

 private:
  const WholeStep& whole_;
  int64_t units_;
  bool moves_in_wait_;
  double computing_ = 0, byte_seconds_ = 0;
};

}  // namespace moonhalo
