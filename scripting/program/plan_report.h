// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/engine/forecast/clocks.h"
#include "moonhalo/engine/forecast/rank_kinds.h"
#include "moonhalo/engine/forecast/tape_summary.h"
#include "moonhalo/scripting/program/plan_check.h"

namespace moonhalo::scripting {

/// The contents of a report of `moonhalo plan` for one number of ranks.
struct RanksPlan {
  /// The ranks of one kind.
  struct Kind {
    std::vector<int64_t> ranks;
    int64_t peak = 0;  ///< bytes of tensors, from the start of the script on
    TapePeak in_step;
  };
  /// Something that limits the run, and the remedy.
  struct Limit {
    std::string what, fix;
  };
  /// The hosts of a forecast.
  struct Hosts {
    int64_t ranks = 1;  ///< of one host
    int64_t cores = 0;  ///< of one host; 0 where ranks compute on devices
  };
  int64_t ranks = 1;
  std::string backend = "mpi";  ///< what sends the messages; ranks are processes, but for "threads"
  Hosts hosts;                  ///< where there is a forecast
  RankKinds found;
  std::vector<Kind> kinds;              ///< by position in found.tapes.kinds
  std::vector<VerbCounts> counts;       ///< of each rank
  std::vector<Limit> memory, messages;  ///< what hurts, the worst first
  std::vector<Limit> empty;             ///< a cut that leaves most ranks without rows
  int64_t backend_memory = 0;           ///< bytes that the backend adds to a process; 0 where a machine says none
  std::optional<StepForecast> time;     ///< of a step; none without a machine
  std::optional<RanksCheck> check;      ///< beside a real run; none without --check

  /// "rank 63 (rows 7, columns 7)"
  std::string rank_text(int64_t rank) const;
  /// The kinds with the largest and the smallest peak.
  const Kind& largest() const;
  const Kind& smallest() const;
  /// The work of a rank, in the mean: multiplications with additions, or bytes of operators where there are none.
  double work() const;
  /// Tensors of `kind` at the peak with what the process holds besides: `base` bytes, and those of the backend.
  int64_t resident(const Kind& kind, int64_t base) const { return with_free_memory(kind.peak) + base + backend_memory; }
  /// The memory that the allocator holds for `peak` bytes of tensors: about a tenth more, in parts too small for
  /// others.
  static int64_t with_free_memory(int64_t peak) { return peak + peak / 10; }
};

/// Adds up what was found.
RanksPlan summarize_ranks(int64_t ranks, RankKinds found);

/// The subject of a report, besides the plans.
struct PlanSubject {
  std::string script;
  std::string machine;  ///< its name; empty without times
  int64_t base = 0;     ///< bytes of a process beside its tensors
};

/// The report of one number of ranks as text.
std::string ranks_text(const PlanSubject& subject, const RanksPlan& plan);
/// The table that compares several numbers of ranks; "" of one.
std::string comparison_text(const PlanSubject& subject, const std::vector<RanksPlan>& plans);
/// The report as JSON for programs. `missing`: the numbers of ranks whose plans are not there yet.
std::string plan_json(const PlanSubject& subject, const std::vector<RanksPlan>& plans, const std::vector<int>& missing);

}  // namespace moonhalo::scripting
