// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moonhalo/engine/forecast/clocks.h"
#include "moonhalo/engine/forecast/machine.h"
#include "moonhalo/engine/forecast/operator_times.h"
#include "moonhalo/engine/forecast/rank_kinds.h"
#include "moonhalo/engine/forecast/search/search_progress.h"

namespace moonhalo::scripting {

/// Gives `machine` the times of the script's operators as they run on these ranks. Those that have none in `times` are
/// measured here, and kept there. Says on stderr what was measured. Returns the number of operators that were measured
/// while the machine was not quiet, now or before.
int64_t measure_operators(const RankKinds& found, int ranks, OperatorTimes& times, Machine& machine,
                          SearchProgress& progress);

/// Notes how many operators of the script have no measured time, where the rates of the machine were measured.
/// `measures`: these would be measured on this machine.
void note_unmeasured(const Machine& machine, const RankKinds& found, bool measures, StepForecast& time);

/// Puts the time of the host that the dry runs found in the place of what starting an operator takes by the file.
void take_host_time(const RankKinds& found, Machine& machine);

}  // namespace moonhalo::scripting
