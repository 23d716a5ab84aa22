// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/step_hindrances.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/forecast/message_purpose.h"

namespace moonhalo {
namespace {

constexpr int64_t kSmall = 64 * 1024;
constexpr double kLeastShare = 0.02;

std::string megabytes(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, bytes < 1e9 ? "%.3g MB" : "%.3g GB", bytes / (bytes < 1e9 ? 1e6 : 1e9));
  return text;
}

/// The name of a verb, and the remedies where its latency or its bytes take the time.
struct VerbRemedy {
  const char *noun, *latency, *bytes;
};

// By Verb.
constexpr VerbRemedy kVerbRemedies[] = {
    {"exchanges", "use fewer ranks along the dims that are cut, or blocks that fetch wider halos less often",
     "use fewer ranks along the dims that are cut"},
    {"sums", "add up what several calls give in one sum, or compute statistics less often",
     "put this mesh dim on ranks of one host"},
    {"gathers", "keep one cut from layer to layer, so that fewer tensors are put together",
     "keep one cut from layer to layer, or put this mesh dim on ranks of one host"},
    {"reduce-scatters", "keep one cut from layer to layer, so that fewer results are added up",
     "put this mesh dim on ranks of one host"},
    {"all-to-alls", "keep one cut from layer to layer, so that fewer tensors are moved",
     "put this mesh dim on ranks of one host"},
    {"broadcasts", "broadcast once, before the steps", "broadcast once, before the steps"},
    {"barriers", "leave barriers out of the step", "leave barriers out of the step"},
};
static_assert(std::size(kVerbRemedies) == CommStats::kKinds);

constexpr VerbRemedy kGradients = {
    "messages with gradients", "replicate the module: many gradients are then added up in one sum",
    "more samples on each rank between two steps, or put this mesh dim on ranks of one host"};
constexpr VerbRemedy kParametersOrRows = {
    "messages with parameters, their gradients, or rows of blocks",
    "make units of fully_shard larger, so that more parameters are in one message; where rows of blocks move, keep one "
    "cut from layer to layer",
    "keep parameters whole within a host, and store them in blocks only over the hosts; where rows of blocks move, "
    "keep one cut from layer to layer"};

// Returns the purpose of most calls of a verb. `purposes`: those of the tape.
Purpose main_purpose(const Tape& tape, const std::vector<Purpose>& purposes, Verb verb) {
  std::map<Purpose, int64_t> calls;
  for (size_t i = 0; i < purposes.size(); ++i) {
    const auto* call = std::get_if<TapeVerb>(&tape.events[i].what);
    const bool is_verb = call != nullptr ? call->verb == verb : verb == Verb::kExchange;
    if (purposes[i] != Purpose::kNone && is_verb) ++calls[purposes[i]];
  }
  const auto most =
      std::max_element(calls.begin(), calls.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == calls.end() ? Purpose::kNone : most->first;
}

// `purpose`: that of most calls.
VerbRemedy remedy_of(Verb verb, const StepCosts::VerbSum& calls, const Tape& tape, Purpose purpose) {
  VerbRemedy remedy = kVerbRemedies[static_cast<size_t>(verb)];
  if (verb == Verb::kReduceScatter && tape.gathers_parameters)
    return {remedy.noun, kParametersOrRows.latency, kParametersOrRows.bytes};
  if (verb == Verb::kAllReduce && 2 * calls.gradient_calls > calls.calls)
    return {remedy.noun, kGradients.latency, kGradients.bytes};
  if (verb != Verb::kExchange && verb != Verb::kAllGather) return remedy;
  if (purpose == Purpose::kGradients) return kGradients;
  if (purpose == Purpose::kParametersOrRows || (verb == Verb::kAllGather && tape.gathers_parameters))
    return kParametersOrRows;
  if (purpose == Purpose::kSum) {
    const VerbRemedy& sums = kVerbRemedies[static_cast<size_t>(Verb::kAllReduce)];
    return {"gathers of sums", sums.latency, sums.bytes};
  }
  return remedy;
}

// The remedy where edges of blocks take the time, on the ranks of `tape`.
std::string remedy_of_edges(const Tape& tape, const std::vector<Purpose>& purposes, const RankTapes& tapes) {
  int64_t all = 0, far = 0;
  for (size_t i = 0; i < purposes.size(); ++i) {
    const auto* exchange = std::get_if<TapeExchange>(&tape.events[i].what);
    if (exchange == nullptr || purposes[i] != Purpose::kExchange) continue;
    for (const TapePart& part : exchange->sends) all += part.bytes;
    far += bytes_sent_far(tape, *exchange, tapes.mesh);
  }
  if (2 * far > all) return "keep one cut from layer to layer, so that fewer blocks are moved";
  return edges_remedy(tape, tapes);
}

// The mean over ranks of what `read` gives for each kind.
template <typename Read>
double mean_of(const StepForecast& forecast, const std::vector<const StepCosts*>& costs, const Read& read) {
  double sum = 0, ranks = 0;
  for (size_t i = 0; i < costs.size(); ++i) {
    sum += static_cast<double>(forecast.kinds[i].ranks) * read(*costs[i]);
    ranks += static_cast<double>(forecast.kinds[i].ranks);
  }
  return ranks > 0 ? sum / ranks : 0;
}

void add_verbs(const StepForecast& forecast, const std::vector<const StepCosts*>& costs, const RankTapes& tapes,
               std::vector<Hindrance>& all) {
  const StepCosts& slowest = *costs[forecast.slowest];
  const Tape& tape = tapes.kinds.at(forecast.slowest);
  const std::vector<Purpose> purposes = purposes_of(tape);
  double seconds = 0;
  for (int i = 0; i < CommStats::kKinds; ++i)
    seconds += mean_of(forecast, costs, [&](const StepCosts& one) { return one.verb(static_cast<Verb>(i)).seconds; });
  // Hidden messages hinder nothing.
  const double exposed = seconds > 0 ? std::min(1.0, forecast.messages / seconds) : 0;
  for (int i = 0; i < CommStats::kKinds; ++i) {
    const auto verb = static_cast<Verb>(i);
    const auto mean = [&](auto read) {
      return exposed * mean_of(forecast, costs, [&](const StepCosts& one) { return read(one.verb(verb)); });
    };
    const double latency = mean([](const StepCosts::VerbSum& sum) { return sum.latency; });
    const double moving = mean([](const StepCosts::VerbSum& sum) { return sum.seconds - sum.latency; });
    const StepCosts::VerbSum& calls = slowest.verb(verb);
    if (calls.calls == 0) continue;
    const Purpose purpose = main_purpose(tape, purposes, verb);
    const VerbRemedy remedy = remedy_of(verb, calls, tape, purpose);
    const std::string noun = std::to_string(calls.calls) + " " + remedy.noun;
    const std::string small =
        calls.small_calls > 0 ? " (" + std::to_string(calls.small_calls) + " of at most 64 KiB)" : "";
    all.push_back({"latency of " + noun + small, remedy.latency, latency});
    const bool edges = verb == Verb::kExchange && purpose == Purpose::kExchange;
    all.push_back({megabytes(static_cast<double>(calls.bytes)) + " in " + noun,
                   edges ? remedy_of_edges(tape, purposes, tapes) : remedy.bytes, moving});
  }
}

// The key whose seconds exceed the mean over ranks the most.
std::string largest_surplus(const StepForecast& forecast, const std::vector<const StepCosts*>& costs,
                            const std::map<std::string, double>& (StepCosts::*of)() const) {
  std::string largest;
  double most = 0;
  for (const auto& [key, seconds] : (costs[forecast.slowest]->*of)()) {
    const double mean = mean_of(forecast, costs, [&key = key, of](const StepCosts& one) {
      const auto& all = (one.*of)();
      const auto found = all.find(key);
      return found == all.end() ? 0.0 : found->second;
    });
    if (seconds - mean > most) {
      most = seconds - mean;
      largest = key;
    }
  }
  return largest;
}

void add_imbalance(const StepForecast& forecast, const std::vector<const StepCosts*>& costs, const RankTapes& tapes,
                   std::vector<Hindrance>& all) {
  const KindForecast& slowest = forecast.kinds[forecast.slowest];
  const double surplus = slowest.computing - forecast.computing;
  char percent[32];
  std::snprintf(percent, sizeof percent, "%.0f %%", 100 * surplus / std::max(forecast.computing, 1e-300));
  std::string what = "rank " + std::to_string(slowest.rank);
  if (slowest.ranks > 1) what += " and " + std::to_string(slowest.ranks - 1) + " like it";
  what += " of " + std::to_string(tapes.kind_of.size()) + ": " + percent + " more computing than the mean";
  const std::string name = largest_surplus(forecast, costs, &StepCosts::by_name);
  const std::string module = largest_surplus(forecast, costs, &StepCosts::by_module);
  if (!name.empty()) what += ", most of it in " + name + (module.empty() ? "" : " of " + module);
  // Ranks with neighbours on more sides work on more edges, each by operators of its own.
  const double started = costs[forecast.slowest]->launches() -
                         mean_of(forecast, costs, [](const StepCosts& one) { return one.launches(); });
  const bool by_launches = 2 * started > surplus;
  all.push_back({what,
                 by_launches
                     ? "cut fewer dims, or make blocks larger: this rank starts more operators, for edges on more sides"
                     : "make blocks even: set_output_cut(\"rebalance\") before the model runs, if windows or padding "
                       "make them uneven; rebalance(x) if they are inputs; sizes that the ranks divide; or cut by the "
                       "speed of ranks (balance)",
                 std::min(surplus, forecast.waiting), by_launches ? -1 : slowest.rank});
}

}  // namespace

void StepCosts::add_operator(const Tape& tape, const TapeEvent& event, const TapeOperator& call, const Cost& cost) {
  const std::string& name = tape.names.at(call.name);
  by_name_[name] += cost.seconds;
  by_module_[tape.modules.at(event.module)] += cost.seconds;
  errors_[name] += cost.seconds * uncertainty(cost.source);
  launches_ += cost.latency;
  operators_ += call.times;
  if (!call.known && cost.source == CostSource::kRates) unknown_.insert(name);
}

void StepCosts::add_verb(Verb verb, Phase phase, int64_t bytes, const Cost& cost) {
  VerbSum& sum = verbs_.at(static_cast<size_t>(verb));
  ++sum.calls;
  if (phase == Phase::kBackward || phase == Phase::kOptimizer) ++sum.gradient_calls;
  if (bytes <= kSmall) ++sum.small_calls;
  sum.bytes += bytes;
  sum.seconds += cost.seconds;
  sum.latency += std::min(cost.latency, cost.seconds);
  errors_[std::string("verb ") + name(verb)] += cost.seconds * uncertainty(cost.source);
}

double StepCosts::uncertain_seconds() const {
  double squares = 0;
  for (const auto& [key, error] : errors_) squares += error * error;
  return std::sqrt(squares);
}

std::vector<Hindrance> step_hindrances(const StepForecast& forecast, const std::vector<const StepCosts*>& costs,
                                       const RankTapes& tapes) {
  std::vector<Hindrance> all;
  add_verbs(forecast, costs, tapes, all);
  add_imbalance(forecast, costs, tapes, all);
  const double launches = mean_of(forecast, costs, [](const StepCosts& one) { return one.launches(); });
  all.push_back({"starting " + std::to_string(costs[forecast.slowest]->operators()) + " operators",
                 "make blocks larger: fewer ranks, or more samples in a step", launches});
  std::erase_if(all, [&](const Hindrance& one) { return one.seconds < kLeastShare * forecast.step; });
  std::stable_sort(all.begin(), all.end(),
                   [](const Hindrance& a, const Hindrance& b) { return a.seconds > b.seconds; });
  return all;
}

}  // namespace moonhalo
