// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tests/aten/samples.h"
#include "tests/support/placements.h"

namespace moonhalo::testing {

/// Calls of one operator on the same tensors that differ in an argument that is absent or given, a number's value or
/// type, how long lists are and where one ends, a dtype: what decisions must not confuse.
struct Calls {
  struct PoolTensor {
    at::Tensor full;
    size_t like = 0;  ///< the tensor of the first call that it is cut as
  };
  std::vector<Sample> samples;
  std::vector<PoolTensor> pool;              ///< of all samples; those of the first one come first
  std::vector<std::vector<size_t>> tensors;  ///< by sample: its tensors in the pool
};

/// A table's sample varied, and the other samples of the operator on tensors of the same shapes.
Calls calls_like(const Sample& sample, const std::vector<Sample>& others);

/// Makes all calls in one process, forth and back, with no decision known at the beginning of each. Gives "" when every
/// one gives what one device gives or is refused clearly, the same in both orders; else what is wrong. `right` and
/// `refused` count calls.
std::string pairs_problem(const Calls& calls, const Way& way, int* right, int* refused);

}  // namespace moonhalo::testing
