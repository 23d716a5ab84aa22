// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/oracle.h"
#include "tests/support/placement_cases.h"

namespace moonhalo::testing {

using X = const at::Tensor&;

/// A field [batch, channel, row, column] for programs of whole nets.
inline const at::Tensor kField = make_tensor({3, 4, 7, 5}, 1);

/// Ways to hold it: uneven, with an empty block, on a grid.
inline const std::vector<PlacementCase> kFieldWays = {
    {"rows_2_5", {2}, {shard(2, {2, 5})}},
    {"rows_with_an_empty_block", {3}, {shard(2, {4, 0, 3})}},
    {"columns_over_4", {4}, {shard(3, {2, 1, 1, 1})}},
    {"batch_and_rows", {2, 2}, {shard(0, {1, 2}), shard(2, {6, 1})}},
    {"replicated_and_columns", {2, 2}, {replicate(), shard(3, {3, 2})}},
};

struct Program1 {
  const char* name;
  std::function<List(X)> run;
};
struct ProgramN {
  const char* name;
  Program run;
};

/// Every program on every way to hold the field; `inputs(way)` are its tensors.
inline void expect_on_ways(const std::vector<ProgramN>& programs,
                           const std::function<std::vector<Input>(const PlacementCase&)>& inputs,
                           const Oracle& options = {}, const std::vector<PlacementCase>& ways = kFieldWays) {
  for (const ProgramN& program : programs) {
    for (const PlacementCase& way : ways) {
      SCOPED_TRACE(std::string(program.name) + " " + way.name);
      const std::string thrown = message_of([&] { expect_same_as_plain(way.mesh, inputs(way), program.run, options); });
      if (!thrown.empty()) ADD_FAILURE() << thrown;
    }
  }
}

}  // namespace moonhalo::testing
