// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "ops/neighborhood_attention.h"

namespace moonhalo::testing {

/// One call of neighbourhood attention, by its sizes.
struct NeighborhoodCase {
  const char* name;
  std::vector<int64_t> dims;
  Neighborhood n;
  int64_t head_dim = 5, value_dim = 5, batch = 1, heads = 2;
  std::optional<double> scale = std::nullopt;
};

/// One to three dims, windows odd, even, as long as the dim, strides, dilations, causal dims, scales, wide and narrow features.
const std::vector<NeighborhoodCase>& neighborhood_cases();

/// Query, key and value, in (-2, 2): the same values for every type, but for rounding.
std::vector<at::Tensor> inputs_of(const NeighborhoodCase& c, at::ScalarType type);

}  // namespace moonhalo::testing
