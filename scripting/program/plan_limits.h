// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/scripting/program/plan_report.h"

namespace moonhalo::scripting {

/// Fills plan.memory and plan.messages: what hurts, and the remedies. Each has at least one entry where there is more
/// than one rank.
void find_limits(RanksPlan& plan);
/// Puts into plan.time the remedies that the cuts of tensors leave for ranks that compute more than the others.
void advise_by_cuts(RanksPlan& plan);

}  // namespace moonhalo::scripting
