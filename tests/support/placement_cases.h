// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tests/support/oracle.h"

namespace moonhalo::testing {

using List = Tensors;

/// One way to hold a tensor.
struct PlacementCase {
  const char* name;
  std::vector<int64_t> mesh;
  std::vector<Placement> placements;
};

/// Ways to hold a tensor of shape [9, 7, 2]: uneven, empty, 1-D and 2-D, cut twice, Partial.
inline const std::vector<PlacementCase> kPlacements972 = {
    {"rows_5_4", {2}, {shard(0, {5, 4})}},
    {"rows_3_6", {2}, {shard(0, {3, 6})}},
    {"columns_1_5_1", {3}, {shard(1, {1, 5, 1})}},
    {"empty_block", {3}, {shard(0, {4, 0, 5})}},
    {"last_dim_over_4", {4}, {shard(2)}},
    {"grid", {2, 2}, {shard(0, {3, 6}), shard(1, {3, 4})}},
    {"one_dim_cut_twice", {2, 2}, {shard(0, {5, 4}), shard(0)}},
    {"replicated_and_cut", {2, 2}, {replicate(), shard(1, {2, 5})}},
    {"partial", {2}, {partial()}},
    {"partial_and_cut", {2, 2}, {partial(), shard(0, {5, 4})}},
    {"average_and_cut", {2, 2}, {partial(ReduceOp::kAvg), shard(1)}},
};

/// True if tensors of `dtype` can be held so: bools are not addends, integers have no averages.
bool can_hold(const PlacementCase& held, at::ScalarType dtype);

/// A program of one tensor.
struct Case {
  const char* name;
  std::function<List(const at::Tensor&)> run;
  Oracle options = {};
};

/// Not linear, so that the gradient that comes back through an operator differs from place to place.
inline at::Tensor cubed(const at::Tensor& x) { return x * x * x; }

/// Every case on `full`, held in every way that can hold it.
void check(const std::vector<Case>& cases, const at::Tensor& full,
           const std::vector<PlacementCase>& ways = kPlacements972);
/// The same on a copy in inference mode, forward alone.
void check_in_inference_mode(std::vector<Case> cases, const at::Tensor& full,
                             const std::vector<PlacementCase>& ways = kPlacements972);

}  // namespace moonhalo::testing
