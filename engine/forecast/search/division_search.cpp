// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/search/division_search.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/comm/fake/root_facts.h"
#include "moonhalo/engine/dispatch/dispatch.h"
#include "moonhalo/engine/exchange/equal_steps.h"
#include "moonhalo/engine/forecast/clocks.h"
#include "moonhalo/engine/forecast/costs.h"
#include "moonhalo/engine/forecast/fake_tensor.h"
#include "moonhalo/engine/forecast/least_time.h"
#include "moonhalo/engine/forecast/rank_kinds.h"
#include "moonhalo/engine/forecast/search/division_times.h"
#include "moonhalo/engine/forecast/search/search_progress.h"
#include "moonhalo/engine/forecast/search/search_report.h"
#include "moonhalo/engine/forecast/tape_recorder.h"
#include "moonhalo/engine/forecast/tape_summary.h"
#include "moonhalo/engine/profile/memory.h"
#include "moonhalo/engine/profile/unrecorded.h"

namespace moonhalo {
namespace {

constexpr double kUsableMemory = 0.9;
constexpr double kRounding = 1e-9;  // of sums in other orders
constexpr int64_t kMeasured = 3;    // of those that may be the fastest
constexpr double kRoughFrom = 1.5;  // measured times by forecasts
constexpr int kRounds = 3;          // of measured ones
constexpr int64_t kFewRanks = 16;   // all of which are soon run

/// Models draw their parameters from LibTorch's generator. A search leaves it as it was.
class KeptGenerator {
 public:
  KeptGenerator() : generator_(at::detail::getDefaultCPUGenerator()) {
    const std::lock_guard lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~KeptGenerator() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state_);
  }
  KeptGenerator(const KeptGenerator&) = delete;
  KeptGenerator& operator=(const KeptGenerator&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

int64_t gradient_bytes(const std::vector<at::Tensor>& parameters) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : parameters) {
    if (tensor.grad().defined()) bytes += static_cast<int64_t>(tensor.numel() * tensor.element_size());
  }
  return bytes;
}

/// At its end the plans of a dry run go: no other run has its mesh. The plans of this rank itself go, too, and are made
/// again.
struct ForgetPlans {
  ForgetPlans() = default;
  ~ForgetPlans() { Dispatch::of_this_thread().clear(); }
  ForgetPlans(const ForgetPlans&) = delete;
  ForgetPlans& operator=(const ForgetPlans&) = delete;
};

/// Two steps before the one on the tape: the first plans, and the optimizer makes its states. `allows_part`: the tape
/// may lack events (TapeRecorder::take). `whole`: what the bounds of memory need, where it is asked for.
RankRun run_dry(const BuildDivided& build, const Division& division, int64_t rank, int64_t ranks,
                const std::string& backend, bool allows_part, WholeStep* whole) {
  const MemoryCount counted;
  const ForgetPlans plans;
  const FakeResults fakes;
  const SeenSpecs specs;
  const CommunicatorPtr world =
      make_fake_communicator(static_cast<int>(rank), static_cast<int>(ranks), nullptr, backend);
  const BuiltStep built = build(division, *world);
  check_built(built);
  const int64_t before = memory_use().live - gradient_bytes(built.parameters);
  std::optional<LeaveOutEqualSteps> first_steps_only(nullptr);
  built.step();
  if (whole != nullptr) {
    whole->parameters = gradient_bytes(built.parameters);  // others are not summed, and have no states
    whole->states = std::max<int64_t>(0, memory_use().live - gradient_bytes(built.parameters) - before);
  }
  built.step();
  first_steps_only.reset();
  TapeRecorder recorder(*world);
  recorder.leave_out_equal_steps();
  built.step();
  RankRun run;
  run.tape = recorder.take(allows_part);
  run.tape.events.shrink_to_fit();
  run.meshes = specs.meshes();
  run.shares = specs.shares();
  run.peak = peak_of(run.tape).bytes;
  run.steps = 3;
  return run;
}

RankRun named_dry_run(const BuildDivided& build, const Division& division, int64_t rank, int64_t ranks,
                      const std::string& backend, bool allows_part = false, WholeStep* whole = nullptr) {
  std::string why;
  try {
    return run_dry(build, division, rank, ranks, backend, allows_part, whole);
  } catch (const c10::Error& error) {
    why = error.what_without_backtrace();
  } catch (const std::exception& error) {
    why = error.what();
  }
  TORCH_CHECK_VALUE(false, "search: the dry run of '", division.text(), "' failed on rank ", rank, " of ", ranks,
                    ", a simulated rank\n  have  ", why,
                    "\n  fix   make the model and its step run so divided, or leave such divisions out of the space");
}

/// A rank that takes longer alone than other divisions do, or may do.
struct SlowRank {
  DivisionBound alone;
};

class Search {
 public:
  Search(const SearchOptions& options, const BuildDivided& build)
      : options_(options),
        build_(build),
        world_(options.space.ranks * options.units),
        backend_(options.backend.empty() ? usual_backend(options.machine, world_) : options.backend),
        progress_(options.progress) {}

  SearchResult run() {
    SearchResult result;
    result.machine = options_.machine.name;
    result.backend = backend_;
    result.ranks = options_.space.ranks;
    result.units = options_.units;
    result.memory_limit = memory_limit();
    WholeStep whole;
    named_dry_run(build_, Division{}, 0, 1, backend_, false, &whole);
    for (const Division& division : divisions_of(options_.space)) {
      result.ranked.emplace_back();
      result.ranked.back().division = division;
      const int64_t blocks = options_.units_store ? options_.units : 1;
      result.ranked.back().memory = result.ranked.back().bound.memory = least_memory(whole, division, blocks);
    }
    for (size_t i = 0; i < result.ranked.size(); ++i) {
      progress_.at([&] {
        return "least times of " + std::to_string(i) + " of " + plural(std::ssize(result.ranked), "division") +
               " found";
      });
      begin(result, i);
    }
    // By growing bounds, so that the best are found early.
    while (!left_.empty()) {
      progress_.at([&] {
        return plural(result.dry_runs, "division") + " dry run, at most " + std::to_string(left_.size()) + " more";
      });
      const size_t i = left_.extract(left_.begin()).mapped();
      DivisionResult& one = result.ranked[i];
      if (is_slow(one.bound.step)) {
        drop_first_rank(one);
        one.fate = DivisionResult::Fate::kSlowBound;
      } else if (!forecast(one)) {
        left_.emplace(one.bound.step, i);  // with a larger bound
        continue;
      } else {
        ++result.dry_runs;
        const bool is_large = result.memory_limit > 0 && one.memory > result.memory_limit;
        one.fate = is_large ? DivisionResult::Fate::kTooLarge : DivisionResult::Fate::kForecast;
        if (!is_large) best_.insert(std::upper_bound(best_.begin(), best_.end(), one.step), one.step);
      }
      if (!one.division.recomputes) begin_recomputing(result, i);
    }
    rank_results(result);
    explain(result);
    check_fits(result);
    return result;
  }

 private:
  int64_t memory_limit() const {
    if (options_.memory_limit > 0) return options_.memory_limit;
    const Machine& machine = options_.machine;
    const bool is_device = machine.device.kind != "cpu";
    if (is_device || machine.host.memory <= 0) return static_cast<int64_t>(kUsableMemory * machine.device.memory);
    const auto of_host = static_cast<double>(Costs(machine, backend_, world_).ranks_of_host());
    const double processes = backend_ == "threads" ? 1 : of_host;
    const double of_process = machine.host.base_rss + machine.memory_of_backend(backend_);
    const double bytes = (machine.host.memory - processes * of_process) / of_host;
    return std::max<int64_t>(1, static_cast<int64_t>(kUsableMemory * bytes));  // 0 means no limit
  }

  // Decides by its bounds whether a division may be dry run on all ranks that matter. One that recomputes waits for the
  // same one that keeps activations, which is the one before.
  void begin(SearchResult& result, size_t i) {
    DivisionResult& one = result.ranked[i];
    if (one.division.recomputes) return;
    if (options_.prunes && result.memory_limit > 0 && one.memory > result.memory_limit) {
      one.fate = DivisionResult::Fate::kLargeBound;
      return begin_recomputing(result, i);
    }
    find_bound(one);
    left_.emplace(one.bound.step, i);
  }

  // The same of one that recomputes, when the one before, which keeps activations, is decided.
  void begin_recomputing(SearchResult& result, size_t i) {
    if (i + 1 == result.ranked.size() || !result.ranked[i + 1].division.recomputes) return;
    const DivisionResult& kept = result.ranked[i];
    DivisionResult& one = result.ranked[i + 1];
    const bool is_tried = !options_.prunes || kept.fate == DivisionResult::Fate::kTooLarge;
    one.fate = kept.fate == DivisionResult::Fate::kForecast ? DivisionResult::Fate::kNotNeeded : kept.fate;
    one.bound = kept.bound;
    if (is_tried) find_bound(one);
    one.bound.step = std::max(one.bound.step, kept.step);
    if (is_tried) left_.emplace(one.bound.step, i + 1);
  }

  // True if a division with this bound is not among the best ones: the one, or those that are measured.
  bool is_slow(double bound) const {
    const auto wanted = static_cast<size_t>(std::max<int64_t>(1, options_.measure.value_or(0)));
    return options_.prunes && best_.size() >= wanted && bound > best_[wanted - 1] * (1 + kRounding);
  }

  static void set_bound(DivisionResult& one, DivisionBound alone) {
    alone.memory = one.bound.memory;
    one.bound = alone;
  }

  // The time that rank 0 takes alone. A part of a long tape is enough for that.
  void find_bound(DivisionResult& one) {
    RankRun run = named_dry_run(build_, one.division, 0, world_, backend_, true);
    set_bound(one, least_step(options_.machine, backend_, run.tape));
    if (run.tape.whole && !is_slow(one.bound.step)) keep_first_rank(one, std::move(run));
  }

  // Most of the memory of a dry run.
  static int64_t bytes_of(const RankRun& run) {
    int64_t bytes = std::ssize(run.tape.events) * static_cast<int64_t>(sizeof(TapeEvent));
    for (const TapeEvent& event : run.tape.events) {
      if (const auto* exchange = std::get_if<TapeExchange>(&event.what))
        bytes += (std::ssize(exchange->sends) + std::ssize(exchange->receives)) * int64_t{sizeof(TapePart)};
    }
    for (const SeenMesh& mesh : run.meshes) {
      for (const auto& [cut, tensor] : mesh.cuts) bytes += std::ssize(cut.sizes) * int64_t{sizeof(int64_t)};
    }
    return bytes;
  }

  // The dry runs of thousands of divisions take too much memory. Those of the largest bounds are done again if a
  // forecast needs them.
  void keep_first_rank(const DivisionResult& one, RankRun run) {
    kept_bytes_ += bytes_of(run);
    first_ranks_[&one] = std::move(run);
    while (kept_bytes_ > options_.kept_bytes) {
      const auto slowest = std::max_element(first_ranks_.begin(), first_ranks_.end(), [](const auto& a, const auto& b) {
        return a.first->bound.step < b.first->bound.step;
      });
      drop_first_rank(*slowest->first);
    }
  }

  std::optional<RankRun> drop_first_rank(const DivisionResult& one) {
    auto first = first_ranks_.extract(&one);
    if (first.empty()) return std::nullopt;
    kept_bytes_ -= bytes_of(first.mapped());
    return std::move(first.mapped());
  }

  // A dry run; that of rank 0 may have been done for the bound.
  RankRun run_rank(const DivisionResult& one, int64_t rank) {
    if (auto first = rank == 0 ? drop_first_rank(one) : std::nullopt) return std::move(*first);
    return named_dry_run(build_, one.division, rank, world_, backend_);
  }

  // A number that grows with the work of a rank: the sizes of its blocks as parts of the largest ones, and the mesh
  // dims along which it has neighbours on both sides.
  static double work_of(const std::vector<SeenMesh>& meshes, int64_t rank) {
    double work = 0;
    for (const SeenMesh& mesh : meshes) {
      const std::vector<int64_t> at = mesh.coordinates(rank);
      for (size_t d = 0; d < at.size(); ++d) work += at[d] > 0 && at[d] + 1 < mesh.shape[d] ? 1e-3 : 0;
      for (const auto& [cut, tensor] : mesh.cuts) {
        const auto largest = static_cast<double>(*std::max_element(cut.sizes.begin(), cut.sizes.end()));
        work += static_cast<double>(cut.sizes[mesh.block_of(cut, rank)]) / std::max(1.0, largest);
      }
    }
    return work;
  }

  // Dry runs of ranks, those first that may have the most work. Throws SlowRank at one whose bound is above the best
  // times, or of many ranks, once for each division, above the bound of another one.
  std::vector<RankRun> run_ranks(const DivisionResult& one, const std::vector<int64_t>& ranks,
                                 std::vector<SeenMesh>& meshes) {
    std::vector<RankRun> runs(ranks.size());
    std::vector<std::pair<double, size_t>> order;
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i] == 0) {
        runs[i] = run_rank(one, 0);
        meshes = runs[i].meshes;
        std::erase_if(meshes, [&](const SeenMesh& mesh) { return c10::multiply_integers(mesh.shape) != world_; });
      } else {
        order.emplace_back(-work_of(meshes, ranks[i]), i);
      }
    }
    std::sort(order.begin(), order.end());
    for (const auto& [work, i] : order) {
      runs[i] = run_rank(one, ranks[i]);
      const DivisionBound alone = least_step(options_.machine, backend_, runs[i].tape);
      const bool may_wait = options_.prunes && world_ > kFewRanks && !refined_.contains(&one);
      const bool is_after_another = may_wait && !left_.empty() && alone.step > left_.begin()->first;
      if (is_slow(alone.step) || is_after_another) throw SlowRank{alone};
    }
    return runs;
  }

  // False if a rank takes longer alone than the best ones, or than the bound of another division: then that is the
  // bound.
  bool forecast(DivisionResult& one) {
    RankKinds kinds;
    std::vector<SeenMesh> meshes;
    try {
      kinds = find_kinds(world_, [&](const std::vector<int64_t>& ranks) { return run_ranks(one, ranks, meshes); });
    } catch (const SlowRank& slow) {
      set_bound(one, slow.alone);
      refined_.insert(&one);
      return false;
    }
    one.memory = 0;
    for (const RankRun& run : kinds.runs) one.memory = std::max(one.memory, run.peak);
    for (const Tape& tape : kinds.tapes.kinds) one.sent = std::max(one.sent, total(counts_of(tape, tape.rank)).bytes);
    const StepForecast time = forecast_step(options_.machine, kinds.tapes, backend_);
    one.step = time.step;
    one.low = time.low;
    one.high = time.high;
    one.computing = time.computing;
    one.messages = time.messages;
    one.waiting = time.waiting;
    return true;
  }

  static void check_fits(const SearchResult& result) {
    TORCH_CHECK_VALUE(fits(result.ranked.front()), "search: no division of ", plural(result.ranks, "rank"),
                      " fits into ", plural(result.memory_limit, "byte"), " a rank\n  have  ", to_text(result),
                      "  fix   more ranks, smaller samples, or a larger memory_limit");
  }

  const SearchOptions& options_;
  const BuildDivided& build_;
  const int64_t world_;
  const std::string backend_;
  SearchProgress progress_;
  std::multimap<double, size_t> left_;                    // those to be dry run, by their bounds
  std::vector<double> best_;                              // times of those that fit, growing
  std::map<const DivisionResult*, RankRun> first_ranks_;  // dry runs of rank 0, as far as they fit
  int64_t kept_bytes_ = 0;                                // of these
  std::set<const DivisionResult*> refined_;               // whose bound is that of a rank with more work than rank 0
};

void check_options(const SearchOptions& options) {
  TORCH_CHECK_VALUE(options.units >= 1 && options.measure.value_or(0) >= 0 && options.memory_limit >= 0,
                    "search: units is at least 1, measure and memory_limit are at least 0\n  have  units = ",
                    options.units, ", measure = ", options.measure.value_or(0),
                    ", memory_limit = ", options.memory_limit, "\n  fix   leave out what is not needed");
}

bool has_ranks(const Communicator& world, const SearchOptions& options) {
  return world.size() == options.space.ranks * options.units;
}

void check_measured(const Communicator& world, const SearchOptions& options) {
  const int64_t wanted = options.measure.value_or(0);
  TORCH_CHECK_VALUE(wanted == 0 || has_ranks(world, options), "search: divisions of ",
                    plural(options.space.ranks * options.units, "rank"), " cannot be measured on ", world.size(),
                    "\n  have  measure = ", wanted, ", units = ", options.units,
                    "\n  fix   measure = 0, or run with as many ranks");
  TORCH_CHECK_VALUE(wanted == 0 || !world.is_fake(),
                    "search: simulated ranks cannot be measured\n  have  backend fake, measure = ", wanted,
                    "\n  fix   measure = 0, or load a plan that a run has stored");
}

/// Returns on all ranks the text that `work` gives on rank 0, or its error. Ranks of dry runs that know what rank 0 has
/// found take that, and do not work.
std::string text_of_first_rank(Communicator& world, const std::function<std::string()>& work) {
  if (!world.is_fake()) return run_on_first_rank(world, work);
  std::vector<int64_t> letters;
  if (world.rank() > 0) letters = facts_of_root(world, 0, {});
  if (!letters.empty()) return {letters.begin(), letters.end()};
  std::string text = work();
  if (world.rank() == 0) facts_of_root(world, 0, {text.begin(), text.end()});
  return text;
}

/// True if the machine is this host. Rank 0 has the machine. Collective.
bool is_here(Communicator& world, const SearchOptions& options) {
  const auto where = [&] { return std::string(is_this_host(options.machine) ? "here" : "elsewhere"); };
  return run_on_first_rank(world, where) == "here";
}

/// True where the best ones are measured without having been asked for.
bool measures_by_default(Communicator& world, const SearchOptions& options) {
  if (options.measure.has_value() || world.is_fake() || !has_ranks(world, options)) return false;
  return is_here(world, options);
}

/// The note of a result on its measured times, where they differ from forecasts in kind or by much; else "".
std::string note_on_measured(const SearchResult& result, bool is_here) {
  if (!is_here) return "measured times are those of this host, forecasts those of '" + result.machine + "'";
  std::vector<double> ratios;
  for (const DivisionResult& one : result.ranked) {
    if (one.measured && one.step > 0) ratios.push_back(*one.measured / one.step);
  }
  const double ratio = ratios.empty() ? 1 : median_of(std::move(ratios));
  if (ratio < kRoughFrom) return "";
  char text[16];
  std::snprintf(text, sizeof text, "%.2g", ratio);
  return std::string("measured steps take ") + text + " times their forecasts: rates are rough for small operators";
}

/// The best `count` divisions; `are_close`: of these, those that may be the fastest, and none where that is one.
std::vector<Division> divisions_to_measure(const SearchResult& result, int64_t count, bool are_close) {
  std::vector<Division> divisions;
  const DivisionResult& best = result.ranked.front();
  for (const DivisionResult& one : result.ranked) {
    if (std::ssize(divisions) == count || one.fate != DivisionResult::Fate::kForecast) break;
    if (are_close && one.low > best.high) break;
    divisions.push_back(one.division);
  }
  if (are_close && divisions.size() == 1) return {};
  return divisions;
}

}  // namespace

std::string backend_of_search(const Communicator& world, const SearchOptions& options) {
  const Machine& machine = options.machine;
  if (!options.backend.empty()) return options.backend;
  const bool may_run = machine.device.kind == "cpu" && has_ranks(world, options) &&
                       (is_this_host(machine) || is_bound_to_part(machine, world.size()));
  if (!may_run) return usual_backend(machine, options.space.ranks * options.units);
  const std::string backend = world.is_fake() ? simulated_backend(world) : world.backend();
  return backend.empty() ? usual_backend(machine, world.size()) : backend;
}

void check_built(const BuiltStep& built) {
  TORCH_CHECK_VALUE(built.step != nullptr,
                    "search: the function that builds the model returned no step\n"
                    "  have  nothing to call\n  fix   return a function that does one training step");
}

SearchResult search_divisions(const SearchOptions& options, const BuildDivided& build) {
  check_options(options);
  const Unrecorded unrecorded;
  const KeptGenerator kept;
  return Search(options, build).run();
}

SearchResult search_divisions(Communicator& world, const SearchOptions& options, const BuildDivided& build) {
  check_options(options);
  check_measured(world, options);
  const Unrecorded unrecorded;
  const bool are_close = measures_by_default(world, options);
  SearchOptions counted = options;
  counted.measure = are_close ? kMeasured : options.measure.value_or(0);
  SearchResult result = parse_search(text_of_first_rank(world, [&] {
    counted.backend = backend_of_search(world, options);
    return to_json(search_divisions(counted, build));
  }));
  const std::vector<Division> measured = divisions_to_measure(result, *counted.measure, are_close);
  std::vector<std::vector<double>> times = time_divisions(world, build, measured, kRounds);
  for (size_t i = 0; i < measured.size(); ++i) result.ranked[i].measured = median_of(std::move(times[i]));
  if (!measured.empty()) result.note = note_on_measured(result, are_close || is_here(world, options));
  rank_results(result);
  explain(result);
  return result;
}

}  // namespace moonhalo
