// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/support/placement_cases.h"

namespace moonhalo::testing {

using X = const at::Tensor&;

/// Says what a row of a sweep may do beside giving one device's answer on blocks.
struct Allowed {
  bool gather = false;  ///< some placements go to the gather fallback
  bool refuse = false;  ///< some placements are refused with a clear error
  double tolerance = 1e-10;
  bool backward = true;
  bool other_cut = false;  ///< gradients may come back in another cut than their leaf's
};

/// An operator call on one to four tensors, or on a list of them.
struct Row {
  std::string name;
  List inputs;
  std::function<List(const List&)> run;
  Allowed allowed;
};

template <typename Result>
List listed(Result&& result) {
  using Plain = std::decay_t<Result>;
  if constexpr (std::is_same_v<Plain, at::Tensor>) {
    return {result};
  } else if constexpr (std::is_same_v<Plain, List>) {
    return result;
  } else {
    return std::apply([](const auto&... items) { return List{items...}; }, result);
  }
}

/// `run` takes as many tensors as `inputs` has, or a List; it gives a tensor, a List or a tuple.
template <typename Run>
Row row(std::string name, List inputs, Run run, Allowed allowed = {}) {
  std::function<List(const List&)> call = [run](const List& t) {
    if constexpr (std::is_invocable_v<Run, X>) {
      return listed(run(t[0]));
    } else if constexpr (std::is_invocable_v<Run, X, X>) {
      return listed(run(t[0], t[1]));
    } else if constexpr (std::is_invocable_v<Run, X, X, X>) {
      return listed(run(t[0], t[1], t[2]));
    } else if constexpr (std::is_invocable_v<Run, X, X, X, X>) {
      return listed(run(t[0], t[1], t[2], t[3]));
    } else {
      return listed(run(t));
    }
  };
  return {std::move(name), std::move(inputs), std::move(call), allowed};
}

/// Runs every row on ways to hold its tensors: each input cut on each of its dims over two to four ranks, in uneven and
/// empty blocks, and grids of 2 x 2 with replicated, cut, Partial and plain tensors mixed. The ways are drawn from a
/// seed that depends on the row's name alone; MOONHALO_SWEEP=n draws n times as many. Adds a test failure for every
/// way whose values or gradients differ from one device, that ends in anything but a clear refusal, or that does what
/// the row does not allow. Prints a line for every row.
void sweep(const std::vector<Row>& rows);

}  // namespace moonhalo::testing
