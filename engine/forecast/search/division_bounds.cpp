// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/search/division_bounds.h"

#include <algorithm>
#include <limits>
#include <string>

namespace moonhalo {
namespace {

constexpr double kNever = std::numeric_limits<double>::max();

// The most bytes of a tensor that a second moves by a table of measured collectives: at an entry, or on the way to
// the next one.
double fastest_of(const SizeTable& table) {
  double fastest = 0;
  for (size_t i = 0; i < table.size(); ++i) {
    const auto& [size, seconds] = table[i];
    fastest = std::max(fastest, seconds > 0 ? size / seconds : kNever);
    if (i == 0) continue;
    const double more = size - table[i - 1].first, longer = seconds - table[i - 1].second;
    fastest = std::max(fastest, longer > 0 ? more / longer : more > 0 ? kNever : 0);
  }
  return fastest;
}

// The least seconds of a byte of a tensor that all ranks of a group get or sum.
double least_byte_seconds(const Machine& machine, const std::string& backend) {
  double fastest = 0;
  for (const Machine::Level& level : machine.levels) fastest = std::max(fastest, level.bandwidth);
  const auto tables = machine.verbs.find(backend);
  if (tables != machine.verbs.end()) {
    for (const auto& [ranks, verbs] : tables->second) {
      for (const auto& [verb, table] : verbs) fastest = std::max(fastest, fastest_of(table));
    }
  }
  return fastest > 0 ? 1 / fastest : 0;
}

}  // namespace

DivisionBounds::DivisionBounds(const Machine& machine, const std::string& backend, const WholeStep& whole,
                               int64_t ranks, int64_t units)
    : whole_(whole), units_(units), byte_seconds_(least_byte_seconds(machine, backend)) {
  const Costs costs(machine, backend, ranks * units);
  moves_in_wait_ = costs.moves_in_wait();
  for (const TapeEvent& event : whole.tape.events) {
    if (const auto* call = std::get_if<TapeOperator>(&event.what))
      computing_ += costs.least_seconds(whole.tape, *call) / static_cast<double>(ranks);
  }
}

DivisionBound DivisionBounds::of(const Division& division) const {
  DivisionBound bound;
  bound.computing = computing_;
  // The largest stage of a pipeline has at least its share of the parameters.
  const int64_t tensor = division.tensor * division.stages, stored = division.is_stored ? division.data : 1;
  const auto summed = static_cast<double>(whole_.parameters) / static_cast<double>(tensor);
  // Each rank has (n - 1) / n of the sums from others; of stored parameters it gets as much again.
  const auto part_of_others = [](int64_t ranks) { return static_cast<double>(ranks - 1) / static_cast<double>(ranks); };
  const int64_t copies = units_ * division.data * division.rows * division.columns;
  bound.messages = byte_seconds_ * summed / static_cast<double>(stored) * part_of_others(copies);
  if (division.is_stored) bound.messages += byte_seconds_ * summed * part_of_others(division.data);
  bound.step = moves_in_wait_ ? bound.computing + bound.messages : std::max(bound.computing, bound.messages);
  // A stage may be stored in blocks over the units. All ranks may share the rest that stays after a step, such as a
  // field that the program keeps.
  const int64_t blocks = division.stages > 1 ? units_ : 1;
  bound.memory = 2 * whole_.parameters / (tensor * stored * blocks) + whole_.states / (division.ranks() * blocks);
  return bound;
}

}  // namespace moonhalo
