// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "moonhalo/engine/forecast/machine.h"
#include "moonhalo/engine/forecast/search/division_search.h"

namespace moonhalo::testing {

/// Rates of a machine whose operators start at once.
inline Machine machine_of(double flops, double bandwidth, double network, double latency) {
  Machine machine;
  machine.name = "planted";
  machine.measured = true;
  machine.device.kind = "cuda";
  machine.device.flops["convolution"][""] = flops;
  machine.device.flops["product"][""] = flops;
  machine.device.bandwidth = {{1e12, bandwidth}};
  machine.levels = {{.name = "all", .latency = latency, .bandwidth = network}};
  return machine;
}

/// The result of a search about a division of its space.
inline const DivisionResult& of_division(const SearchResult& result, const Division& division) {
  return *std::find_if(result.ranked.begin(), result.ranked.end(),
                       [&](const DivisionResult& one) { return one.division == division; });
}

}  // namespace moonhalo::testing
