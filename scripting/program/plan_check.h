// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/engine/forecast/process_memory.h"
#include "moonhalo/scripting/program/real_run.h"

namespace moonhalo::scripting {

struct RanksPlan;

/// The largest difference of memory that counts as right, as a share of what was measured.
inline constexpr double kMemoryWithin = 0.03;

/// A plan beside a real run of the same script on this machine.
struct RanksCheck {
  std::vector<RealRank> ranks;   ///< what each rank did
  int64_t first_timed = 1;       ///< the first step that is timed, from 1
  bool threads = true;           ///< ranks were threads of one process
  std::optional<double> within;  ///< the share by which the time may differ; none: it may be any
  ProcessMemory process;         ///< what it holds beside its tensors
  bool first = true;             ///< the first real run of the process: later ones use memory that it has left

  /// The time of the slowest rank in each timed step.
  std::vector<double> step_seconds() const;
};

/// True if each rank sends what was planned: calls, messages and bytes of each kind of collective.
bool sends_as_planned(const RanksPlan& plan, const RanksCheck& check);
/// True if peaks are within kMemoryWithin: of processes that of the run and that within the step. Of rank threads all
/// ranks are taken together, and one of the two decides: that of the run has what one rank freed for another at the
/// start, that of the step depends on when Lua collects within it. What a plan leaves out is in both.
bool holds_as_planned(const RanksPlan& plan, const RanksCheck& check);
/// True if the time of a step is within RanksCheck::within of the forecast, or if that is not asked.
bool lasts_as_planned(const RanksPlan& plan, const RanksCheck& check);

/// The lines of the report, and the same for programs.
std::string check_text(const RanksPlan& plan, const RanksCheck& check);
nlohmann::ordered_json check_json(const RanksPlan& plan, const RanksCheck& check);

}  // namespace moonhalo::scripting
