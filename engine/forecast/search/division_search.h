// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/forecast/machine.h"
#include "moonhalo/engine/forecast/search/division.h"
#include "moonhalo/engine/forecast/search/division_bounds.h"

namespace moonhalo {

/// A model that was divided over a world.
struct BuiltStep {
  std::function<void()> step;          ///< one training step, the optimizer's included
  std::vector<at::Tensor> parameters;  ///< those that are trained, as this rank holds them
};

/// Makes a model, divides it over the mesh `division.mesh_shape()` of `world` (with stages: pipeline_mesh_shape(); with
/// units: of world.size() / division.ranks() x these), and returns its training step, which does the same work for all
/// divisions. It is called for several divisions, with worlds that exist and with those that do not, and must not
/// change anything that outlives the result. In dry runs tensors are fake (fake_tensor.h) and nothing is sent.
using BuildDivided = std::function<BuiltStep(const Division& division, Communicator& world)>;

/// Throws ValueError if there is no step. Not collective.
void check_built(const BuiltStep& built);

/// The space that is searched, and the machine.
struct SearchOptions {
  DivisionSpace space;
  Machine machine;
  std::string backend;       ///< as in forecast_step; "": as backend_of_search says
  int64_t units = 1;         ///< equal copies of the divided model with other samples: units x ranks in all
  bool units_store = false;  ///< each unit holds a block of each parameter and of its states, not the whole ones
  int64_t memory_limit = 0;  ///< bytes of tensors of a rank; 0: what the machine has, less 10 %
  /// The best ones that are then run for real, where the ranks are there. By default up to 3 whose times may be the
  /// shortest (their `low` is not above the `high` of the best one), where the machine was measured on this host; none
  /// on others.
  std::optional<int64_t> measure;
  /// Is called with what is done now, on rank 0, each few seconds of a search that takes longer; null for none.
  std::function<void(const std::string&)> progress;
  int64_t kept_bytes = int64_t{100} << 20;  ///< of dry runs of rank 0 that wait for forecasts; others are done again
  bool prunes = true;  ///< false: dry runs of all, also of those that bounds exclude or that need not recompute
};

/// The backend of the forecasts of a search among the ranks of `world`: the one that is named, else that of the ranks
/// which run here, or would in a dry run, else usual_backend. For the rank that has the machine. Not collective.
std::string backend_of_search(const Communicator& world, const SearchOptions& options);

/// The findings about a division.
struct DivisionResult {
  /// kForecast: a dry run, and it fits; kTooLarge: a dry run, and it does not; kLargeBound: no dry run, since
  /// parameters, gradients and states alone do not fit; kSlowBound: dry runs of rank 0 and perhaps of others, one of
  /// which is not as fast as the best ones; kNotNeeded: no dry run, since it recomputes, and the same division that
  /// keeps activations fits.
  enum class Fate : uint8_t { kForecast, kTooLarge, kLargeBound, kSlowBound, kNotNeeded };
  Division division;
  Fate fate = Fate::kForecast;
  DivisionBound bound;
  double step = 0, low = 0, high = 0;               ///< seconds, as in StepForecast; 0 without a dry run
  double computing = 0, messages = 0, waiting = 0;  ///< means over the ranks
  int64_t memory = 0;                               ///< bytes of the rank that holds most; without a dry run the bound
  int64_t sent = 0;                                 ///< bytes of the rank that sends most
  std::optional<double> measured;                   ///< seconds of a real step
  std::string why;                                  ///< why it is not the best, or what limits the best one
};

/// All divisions of a space, the best first: measured ones by their time, then forecasts, then those that cannot be as
/// fast, then those that need not recompute, then those that are too large.
struct SearchResult {
  std::string machine, backend;
  int64_t ranks = 1, units = 1;
  int64_t memory_limit = 0;  ///< bytes of a rank; 0: none is known
  int64_t dry_runs = 0;      ///< divisions that were dry run on all ranks that matter
  std::string note;          ///< on measured times; "" where there is nothing to say
  std::vector<DivisionResult> ranked;

  const Division& best() const { return ranked.front().division; }
};

/// Searches the space for the division whose step is the shortest on the machine. Lower bounds come first
/// (division_bounds.h): of memory, from a dry run of the whole model on one rank, and of time, from dry runs of rank 0
/// of each division. Divisions are then dry run by growing bounds, with the ranks that matter (rank_kinds.h), and put
/// on the clocks (clocks.h), until no bound is below the best times. A division that recomputes does the work of the
/// same one that keeps activations, and more. So it is dry run only where that one was too large, and its bound is at
/// least the time of that one. The result is that of dry runs of all. What records this rank does not see the search.
/// Throws ValueError if the space is empty, if nothing fits, and, with the division and the simulated rank, what
/// `build` or a step throws. Not collective.
SearchResult search_divisions(const SearchOptions& options, const BuildDivided& build);

/// The same on all ranks of `world`: rank 0 searches. Then the best ones, as `options.measure` says, are built and run
/// on these ranks, in turns and in 3 rounds (division_times.h); the medians of rank 0's times count. The ranks of a dry
/// run take what its rank 0 has found (comm/fake/root_facts.h), or search themselves. Throws as above on all ranks, and
/// ValueError if measure is above 0 and `world` has not units x ranks ranks or is simulated. Collective over `world`.
SearchResult search_divisions(Communicator& world, const SearchOptions& options, const BuildDivided& build);

/// A table that a person reads, with the first 12 divisions; JSON with all of them. Not collective.
std::string to_text(const SearchResult& result);
std::string to_json(const SearchResult& result);
/// Reads what to_json wrote. Not collective.
SearchResult parse_search(const std::string& json);

}  // namespace moonhalo
