// SPDX-License-Identifier: Apache-2.0
#include "tests/support/neighborhood_cases.h"

#include <ATen/ATen.h>

#include "tests/support/oracle.h"

namespace moonhalo::testing {

const std::vector<NeighborhoodCase>& neighborhood_cases() {
  static const std::vector<NeighborhoodCase> cases = {
      {"one_key", {7}, {{1}}},
      {"whole_domain", {7}, {{7}}},
      {"one_row", {1}, {{1}}},
      {"batches_and_heads", {9}, {{3}}, 4, 4, 3, 3},
      {"long_window", {300}, {{290}}, 3, 3, 1, 1},
      {"longer_than_a_chunk", {1100}, {{1080}}, 3, 3, 1, 1},
      {"causal_longer_than_a_chunk", {1100}, {{1050}, {3}, {1}, {true}}, 2, 2, 1, 1},
      {"many_slabs", {700}, {{5}, {2}}, 33, 17, 1, 1},
      {"wide_heads", {6, 7}, {{3, 5}}, 40, 72},
      {"narrow_values", {6, 7}, {{3, 5}}, 16, 1},
      {"scale", {6, 7}, {{3}}, 8, 8, 1, 1, 0.7},
      {"negative_scale", {6, 7}, {{3}}, 8, 8, 1, 1, -0.7},
      {"even_2d", {8, 9}, {{4, 6}}},
      {"mixed_2d", {9, 11}, {{2, 5}, {2, 3}, {3, 2}, {true, false}}},
      {"causal_2d", {9, 8}, {{4, 3}, {1}, {2, 1}, {true, true}}},
      {"thin_2d", {1, 9}, {{1, 4}}},
      {"cube", {4, 5, 6}, {{3, 2, 5}}, 8, 8},
      {"mixed_3d", {6, 5, 7}, {{2, 3, 3}, {1, 3, 2}, {3, 1, 2}, {false, true, false}}},
      {"causal_3d", {4, 5, 6}, {{2, 3, 4}, {2, 1, 3}, {2, 1, 1}, {true, true, true}}},
      {"flat_3d", {1, 1, 9}, {{1, 1, 5}}},
  };
  return cases;
}

std::vector<at::Tensor> inputs_of(const NeighborhoodCase& c, at::ScalarType type) {
  std::vector<int64_t> shape = {c.batch};
  shape.insert(shape.end(), c.dims.begin(), c.dims.end());
  shape.push_back(c.heads);
  shape.push_back(c.head_dim);
  std::vector<int64_t> value = shape;
  value.back() = c.value_dim;
  return {make_tensor(shape, 1, type) * 2, make_tensor(shape, 2, type) * 2,
          make_tensor(value, 3, type)};
}

}  // namespace moonhalo::testing
