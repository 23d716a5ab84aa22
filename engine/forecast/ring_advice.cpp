// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/ring_advice.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <variant>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/profile/memory_note.h"

namespace moonhalo {
namespace {

// The rings of one group of ranks, of all attention in a step, forward and backward.
struct Rings {
  int64_t steps = 0, bytes = 0;
  double launches = 0;  // of the operators between two steps
};

std::map<uint32_t, Rings> rings_of(const Costs& costs, const Tape& tape) {
  std::map<uint32_t, Rings> rings;
  std::optional<uint32_t> under_way;
  double since = 0;
  for (const TapeEvent& event : tape.events) {
    if (const auto* call = std::get_if<TapeOperator>(&event.what)) since += costs.of_operator(tape, *call).latency;
    if (std::holds_alternative<TapeVerb>(event.what)) under_way.reset();
    const auto* exchange = std::get_if<TapeExchange>(&event.what);
    if (exchange == nullptr) continue;
    const bool passes_on = exchange->traffic == Traffic::kRing;
    if (passes_on) {
      Rings& ring = rings[exchange->group];
      ++ring.steps;
      if (under_way == exchange->group) ring.launches += since;
      for (const TapePart& part : exchange->receives) ring.bytes += part.bytes;
    }
    under_way = passes_on ? std::optional(exchange->group) : std::nullopt;
    since = 0;
  }
  return rings;
}

std::optional<Hindrance> advice_for(const Costs& costs, const Tape& tape, uint32_t group, const Rings& ring) {
  const std::vector<int64_t> members = tape.groups.at(group).members(tape.rank);
  const auto others = static_cast<double>(std::ssize(members) - 1);
  if (others < 2) return std::nullopt;
  const double rounds = std::max(1.0, std::round(static_cast<double>(ring.steps) / others));
  TapeVerb gather;  // of keys or of values
  gather.verb = Verb::kAllGather;
  gather.data = static_cast<int64_t>(static_cast<double>(ring.bytes) / (2 * rounds));
  const double seconds = 2 * rounds * costs.of_verb(gather, members).seconds;
  const double gain = ring.launches * (1 - 1 / others) - seconds;
  if (gain <= 0) return std::nullopt;
  return Hindrance{plural(ring.steps, "step") + " of rings of " + std::to_string(members.size()) +
                       " ranks, each of which starts operators",
                   "gather once what passes around, such as keys and values of attention: redistribute them to "
                   "Replicate along this mesh dim before the call; a rank then holds " +
                       bytes_text(2 * gather.data) + " of them for each attention",
                   gain};
}

}  // namespace

std::optional<Hindrance> ring_advice(const Costs& costs, const Tape& tape) {
  std::optional<Hindrance> most;
  for (const auto& [group, ring] : rings_of(costs, tape)) {
    std::optional<Hindrance> one = advice_for(costs, tape, group, ring);
    if (one && (!most || one->seconds > most->seconds)) most = std::move(one);
  }
  return most;
}

}  // namespace moonhalo
