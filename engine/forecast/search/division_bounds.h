// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "moonhalo/engine/forecast/machine.h"
#include "moonhalo/engine/forecast/search/division.h"
#include "moonhalo/engine/forecast/tape.h"

namespace moonhalo {

/// The memory of a step of the whole model on one rank.
struct WholeStep {
  int64_t parameters = 0;  ///< bytes of what is trained
  int64_t states = 0;      ///< bytes that a step leaves besides gradients: what the optimizer keeps
};

/// Bounds below which a division cannot be.
struct DivisionBound {
  double computing = 0;  ///< seconds of a rank's operators, without waiting for a core
  double messages = 0;   ///< seconds of its collectives and exchanges that are not hidden behind its operators
  double waiting = 0;    ///< seconds by which the slowest rank of a group is later than the mean (the machine's jitter)
  double step = 0;       ///< seconds of all three
  int64_t rank = 0;      ///< whose work it is
  int64_t memory = 0;    ///< bytes of a rank: parameters, gradients, states
};

/// The seconds that the clocks (clocks.h) charge to the rank of this tape at least: a bound without its `memory`. It is
/// the rank's own clock if no other rank is ever late. The tape may lack events at its end. Not collective.
DivisionBound least_step(const Machine& machine, const std::string& backend, const Tape& tape);

/// The least memory of a rank of a model so divided, where `blocks` units hold a block of each parameter (1: each unit
/// holds the whole model). It leaves out activations. Not collective.
int64_t least_memory(const WholeStep& whole, const Division& division, int64_t blocks);

}  // namespace moonhalo
