// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/step_hindrances.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "moonhalo/engine/base/text.h"

namespace moonhalo {
namespace {

constexpr int64_t kSmall = 64 * 1024;
constexpr double kLeastShare = 0.02;

std::string megabytes(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, bytes < 1e9 ? "%.3g MB" : "%.3g GB", bytes / (bytes < 1e9 ? 1e6 : 1e9));
  return text;
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

void add_messages(const StepForecast& forecast, const std::vector<const StepCosts*>& costs, const RankTapes& tapes,
                  std::vector<Hindrance>& all) {
  const Tape& tape = tapes.kinds.at(forecast.slowest);
  const auto seconds_of_all = [](const StepCosts& one) {
    double sum = 0;
    for (const auto& [cause, calls] : one.calls()) sum += calls.seconds;
    return sum;
  };
  const double seconds = mean_of(forecast, costs, seconds_of_all);
  // Hidden messages hinder nothing.
  const double exposed = seconds > 0 ? std::min(1.0, forecast.messages / seconds) : 0;
  for (const auto& [cause, calls] : costs[forecast.slowest]->calls()) {
    const auto mean = [&, &cause = cause](auto read) {
      return exposed * mean_of(forecast, costs, [&](const StepCosts& one) {
               const auto found = one.calls().find(cause);
               return found == one.calls().end() ? 0.0 : read(found->second);
             });
    };
    const double latency = mean([](const StepCosts::CallSum& sum) { return sum.latency; });
    const double moving = mean([](const StepCosts::CallSum& sum) { return sum.seconds - sum.latency; });
    const CauseText text = text_of(cause, tape, tapes);
    const bool one = calls.calls == 1;  // nothing can be put together
    const std::string count = plural(calls.calls, "call") + ": " + text.what;
    const std::string small =
        calls.small_calls > 0 ? " (" + std::to_string(calls.small_calls) + " of at most 64 KiB)" : "";
    all.push_back({"latency of " + count + small, one ? text.bytes : text.latency, latency});
    all.push_back({megabytes(static_cast<double>(calls.bytes)) + " in " + count, text.bytes, moving});
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

// "rank 9 and 35 like it of 64"
std::string rank_of(const KindForecast& kind, const RankTapes& tapes) {
  return "rank " + std::to_string(kind.rank) +
         (kind.ranks > 1 ? " and " + std::to_string(kind.ranks - 1) + " like it" : "") + " of " +
         std::to_string(tapes.kind_of.size());
}

void add_imbalance(const StepForecast& forecast, const std::vector<const StepCosts*>& costs, const RankTapes& tapes,
                   std::vector<Hindrance>& all) {
  const KindForecast& slowest = forecast.kinds[forecast.slowest];
  const double surplus = slowest.computing - forecast.computing;
  char percent[32];
  std::snprintf(percent, sizeof percent, "%.0f %%", 100 * surplus / std::max(forecast.computing, 1e-300));
  std::string what = rank_of(slowest, tapes) + ": " + percent + " more computing than the mean";
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
                 std::min(surplus, forecast.waiting), slowest.rank, by_launches});
}

// Others wait for ranks whose messages take longer.
void add_message_imbalance(const StepForecast& forecast, const std::vector<const StepCosts*>& costs,
                           const RankTapes& tapes, std::vector<Hindrance>& all) {
  const auto most =
      std::max_element(forecast.kinds.begin(), forecast.kinds.end(),
                       [](const KindForecast& a, const KindForecast& b) { return a.messages < b.messages; });
  const size_t kind = static_cast<size_t>(most - forecast.kinds.begin());
  const MessageCause* cause = nullptr;
  double largest = 0;
  for (const auto& [one, calls] : costs[kind]->calls()) {
    const double mean = mean_of(forecast, costs, [&one = one](const StepCosts& of_kind) {
      const auto found = of_kind.calls().find(one);
      return found == of_kind.calls().end() ? 0.0 : found->second.seconds;
    });
    if (calls.seconds - mean <= largest) continue;
    largest = calls.seconds - mean;
    cause = &one;
  }
  if (cause == nullptr) return;
  const CauseText text = text_of(*cause, tapes.kinds.at(kind), tapes);
  const StepCosts::CallSum& calls = costs[kind]->calls().at(*cause);
  char times[32];
  std::snprintf(times, sizeof times, "%.1f", most->messages / std::max(forecast.messages, 1e-300));
  all.push_back({rank_of(*most, tapes) + ": its messages take " + times + " times as long as in the mean, most of it " +
                     text.what,
                 2 * calls.latency > calls.seconds ? text.latency : text.bytes,
                 std::min(most->messages - forecast.messages, forecast.waiting)});
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

void StepCosts::add_call(Verb verb, const MessageCause& cause, int64_t bytes, const Cost& cost) {
  CallSum& sum = calls_[cause];
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
                                       const RankTapes& tapes, const std::optional<Hindrance>& ring) {
  std::vector<Hindrance> all;
  if (ring) all.push_back(*ring);
  add_messages(forecast, costs, tapes, all);
  add_imbalance(forecast, costs, tapes, all);
  add_message_imbalance(forecast, costs, tapes, all);
  const double launches = mean_of(forecast, costs, [](const StepCosts& one) { return one.launches(); });
  all.push_back({"starting " + plural(costs[forecast.slowest]->operators(), "operator"),
                 "make blocks larger: fewer ranks, or more samples in a step", launches - (ring ? ring->seconds : 0)});
  std::erase_if(all, [&](const Hindrance& one) { return one.seconds < kLeastShare * forecast.step; });
  std::stable_sort(all.begin(), all.end(),
                   [](const Hindrance& a, const Hindrance& b) { return a.seconds > b.seconds; });
  return all;
}

}  // namespace moonhalo
