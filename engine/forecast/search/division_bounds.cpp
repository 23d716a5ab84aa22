// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/search/division_bounds.h"

#include <unordered_map>
#include <variant>
#include <vector>

#include "moonhalo/engine/forecast/costs.h"

namespace moonhalo {

DivisionBound least_step(const Machine& machine, const std::string& backend, const Tape& tape) {
  const Costs costs(machine, backend, tape.ranks);
  std::unordered_map<uint32_t, const TapeExchange*> begun;     // by id
  std::unordered_map<uint32_t, std::vector<int64_t>> members;  // by group
  DivisionBound bound;
  for (const TapeEvent& event : tape.events) {
    if (const auto* call = std::get_if<TapeOperator>(&event.what)) {
      bound.computing += costs.of_operator(tape, *call).seconds;
    } else if (const auto* verb = std::get_if<TapeVerb>(&event.what)) {
      std::vector<int64_t>& ranks = members[verb->group];
      if (ranks.empty()) ranks = tape.groups.at(verb->group).members(tape.rank);
      bound.messages += costs.of_verb(*verb, ranks).seconds;
    } else if (const auto* exchange = std::get_if<TapeExchange>(&event.what)) {
      begun[exchange->id] = exchange;
    } else if (const auto* wait = std::get_if<TapeWait>(&event.what); wait && costs.moves_in_wait()) {
      const auto found = begun.find(wait->id);
      if (found == begun.end()) continue;
      const int64_t group = tape.groups.at(found->second->group).size();
      bound.messages += costs.of_exchange(tape, *found->second, group).seconds;
    }
  }
  bound.step = bound.computing + bound.messages;
  return bound;
}

int64_t least_memory(const WholeStep& whole, const Division& division, int64_t blocks) {
  // The largest stage of a pipeline has at least its share of the parameters. All ranks may share the rest that stays
  // after a step, such as a field that the program keeps.
  const int64_t stored = division.is_stored ? division.data : 1;
  return 2 * whole.parameters / (division.tensor * division.stages * stored * blocks) +
         whole.states / (division.ranks() * blocks);
}

}  // namespace moonhalo
