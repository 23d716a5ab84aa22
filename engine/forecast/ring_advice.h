// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "moonhalo/engine/forecast/clocks.h"
#include "moonhalo/engine/forecast/costs.h"
#include "moonhalo/engine/forecast/tape.h"

namespace moonhalo {

/// Returns the time that the step of this tape loses because blocks pass around a ring of ranks (keys and values of
/// attention), where each step of the ring starts operators, in place of one gather. Nothing where a gather is not
/// faster on this machine. Not collective.
std::optional<Hindrance> ring_advice(const Costs& costs, const Tape& tape);

}  // namespace moonhalo
