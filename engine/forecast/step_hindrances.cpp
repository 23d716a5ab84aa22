// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/step_hindrances.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace moonhalo {
namespace {

constexpr int64_t kSmall = 64 * 1024;
constexpr double kLeastShare = 0.02;

std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, seconds < 0.0995 ? "%.2g ms" : "%.0f ms", seconds * 1e3);
  return text;
}

std::string megabytes(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, bytes < 1e9 ? "%.3g MB" : "%.3g GB", bytes / (bytes < 1e9 ? 1e6 : 1e9));
  return text;
}

std::string verb_noun(Verb verb) {
  switch (verb) {
    case Verb::kAllReduce:
      return "sums";
    case Verb::kAllGather:
      return "gathers";
    case Verb::kReduceScatter:
      return "reduce-scatters";
    case Verb::kAllToAll:
      return "all-to-alls";
    case Verb::kBroadcast:
      return "broadcasts";
    case Verb::kBarrier:
      return "barriers";
    case Verb::kExchange:
      return "exchanges";
  }
  return "calls";
}

const char* latency_remedy(Verb verb) {
  switch (verb) {
    case Verb::kAllReduce:
      return "add many tensors in one sum: replicate or fully_shard the module, so that its gradients are one message";
    case Verb::kAllGather:
    case Verb::kReduceScatter:
      return "make units of fully_shard larger, so that more parameters are in one message";
    case Verb::kExchange:
      return "use fewer ranks along the dims that are cut, or blocks that fetch wider halos less often";
    default:
      return "call it less often";
  }
}

const char* bytes_remedy(Verb verb) {
  switch (verb) {
    case Verb::kAllReduce:
      return "store parameters in blocks (fully_shard), or put this mesh dim on ranks of one host";
    case Verb::kAllGather:
    case Verb::kReduceScatter:
      return "keep parameters unsharded within a host, and store them in blocks only over the hosts";
    case Verb::kExchange:
      return "cut the field into blocks nearer to squares: their edges are shorter";
    default:
      return "put this mesh dim on ranks of one host";
  }
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

void add_verbs(const StepForecast& forecast, const std::vector<const StepCosts*>& costs, std::vector<Hindrance>& all) {
  const StepCosts& slowest = *costs[forecast.slowest];
  double seconds = 0;
  for (int i = 0; i < 7; ++i)
    seconds += mean_of(forecast, costs, [&](const StepCosts& one) { return one.verb(static_cast<Verb>(i)).seconds; });
  // Hidden messages hinder nothing.
  const double exposed = seconds > 0 ? std::min(1.0, forecast.messages / seconds) : 0;
  for (int i = 0; i < 7; ++i) {
    const auto verb = static_cast<Verb>(i);
    const auto mean = [&](auto read) {
      return exposed * mean_of(forecast, costs, [&](const StepCosts& one) { return read(one.verb(verb)); });
    };
    const double latency = mean([](const StepCosts::VerbSum& sum) { return sum.latency; });
    const double moving = mean([](const StepCosts::VerbSum& sum) { return sum.seconds - sum.latency; });
    const StepCosts::VerbSum& calls = slowest.verb(verb);
    const std::string noun = std::to_string(calls.calls) + " " + verb_noun(verb);
    const std::string small =
        calls.small_calls > 0 ? " (" + std::to_string(calls.small_calls) + " of at most 64 KiB)" : "";
    all.push_back({noun + small + ": " + milliseconds(latency) + " of latency", latency_remedy(verb), latency});
    all.push_back({noun + ": " + milliseconds(moving) + " for " + megabytes(static_cast<double>(calls.bytes)),
                   bytes_remedy(verb), moving});
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
  what += " of " + std::to_string(tapes.kind_of.size()) + ": " + percent + " more computing than the mean, " +
          milliseconds(surplus);
  const std::string name = largest_surplus(forecast, costs, &StepCosts::by_name);
  const std::string module = largest_surplus(forecast, costs, &StepCosts::by_module);
  if (!name.empty()) what += ", most of it in " + name + (module.empty() ? "" : " of " + module);
  all.push_back({what, "make blocks even: sizes that the ranks divide, another output cut, or a cut by weights",
                 std::min(surplus, forecast.waiting)});
}

}  // namespace

void StepCosts::add_operator(const Tape& tape, const TapeEvent& event, const TapeOperator& call, const Cost& cost) {
  const std::string& name = tape.names.at(call.name);
  by_name_[name] += cost.seconds;
  by_module_[tape.modules.at(event.module)] += cost.seconds;
  errors_[name] += cost.seconds * uncertainty(cost.source);
  launches_ += cost.latency;
  ++operators_;
  if (!call.known && cost.source == CostSource::kRates) unknown_.insert(name);
}

void StepCosts::add_verb(Verb verb, int64_t bytes, const Cost& cost) {
  VerbSum& sum = verbs_.at(static_cast<size_t>(verb));
  ++sum.calls;
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
  add_verbs(forecast, costs, all);
  add_imbalance(forecast, costs, tapes, all);
  const double launches = mean_of(forecast, costs, [](const StepCosts& one) { return one.launches(); });
  all.push_back({std::to_string(costs[forecast.slowest]->operators()) + " operators: " + milliseconds(launches) +
                     " to start them",
                 "make blocks larger: fewer ranks, or more samples in a step", launches});
  std::erase_if(all, [&](const Hindrance& one) { return one.seconds < kLeastShare * forecast.step; });
  std::stable_sort(all.begin(), all.end(),
                   [](const Hindrance& a, const Hindrance& b) { return a.seconds > b.seconds; });
  return all;
}

}  // namespace moonhalo
