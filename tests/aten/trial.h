// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/aten/samples.h"
#include "tests/support/placements.h"

namespace moonhalo::testing {

/// One sample held in one way.
struct Trial {
  Sample sample;
  Way way;
  int derivatives = 0;  ///< at most the sample's

  std::string to_string() const;  ///< "aten::sum.dim_IntList(d[5,4], [0]) on mesh [2]; ..."
  /// The arguments of expect_operator_same_as_plain that repeat this trial, as C++.
  std::string to_test() const;
};

/// The trial in this process.
Verdict run_trial(const Trial& trial);
/// Trials in a process of their own, so that a crash or a hang (60 s) is a wrong verdict of one of them; the next ones
/// go on in another process. The caller must have no threads.
void run_trials_apart(const std::vector<Trial>& trials, const std::function<void(const Trial&, const Verdict&)>& done);
Verdict run_trial_apart(const Trial& trial);

/// Trials of a sample: `ways` of draw_ways (or fewer), chosen by `seed`. With `every_dim` those that cut a dim of a
/// tensor are all among them, however many they are.
std::vector<Trial> trials_of(const Sample& sample, size_t ways, const std::string& seed, bool every_dim = false);

/// A dim of one of a sample's tensors.
struct TensorDim {
  size_t tensor;
  int64_t dim;
  auto operator<=>(const TensorDim&) const = default;
};
/// The dims that the trial's placements cut.
std::set<TensorDim> dims_cut(const Trial& trial);
/// The simplest trial that cuts this dim: uneven blocks on two ranks, all other tensors replicated.
Trial trial_of_dim(const Sample& sample, TensorDim where);

/// A trial that fails as `trial` does and is as small as can be found: fewer derivatives, replicated or plain inputs,
/// one mesh dim, two ranks, balanced blocks, shorter dims.
Trial shrunk(Trial trial);

/// The outcome of an operator.
struct Tally {
  int samples = 0, ways = 0, right = 0, gathered = 0, refused = 0, wrong = 0;
  std::map<std::string, int> gathers;  ///< operators that were gathered on the way
  std::string refusal;                 ///< first line of one

  void add(const Verdict& verdict);
  std::string to_string(const std::string& name) const;  ///< a line of the table
};

/// A failing call, as `./dev fuzz` prints it: adds a test failure unless the operator (by full name) with these
/// arguments (notation.h) and placements (one list per tensor; empty: a plain tensor) gives what one device gives.
void expect_operator_same_as_plain(const std::string& name, const std::string& arguments, std::vector<int64_t> mesh,
                                   const std::vector<std::vector<Placement>>& placements, int derivatives = 2);

}  // namespace moonhalo::testing
