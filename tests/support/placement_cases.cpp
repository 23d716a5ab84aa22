// SPDX-License-Identifier: Apache-2.0
#include "tests/support/placement_cases.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarType.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace moonhalo::testing {

bool can_hold(const PlacementCase& held, at::ScalarType dtype) {
  if (!at::isIntegralType(dtype, true)) return true;
  return std::none_of(held.placements.begin(), held.placements.end(), [&](const Placement& p) {
    return p.is_partial() && (dtype == at::kBool || p.op == ReduceOp::kAvg);
  });
}

void check(const std::vector<Case>& cases, const at::Tensor& full, const std::vector<PlacementCase>& ways) {
  for (const Case& c : cases) {
    for (const PlacementCase& held : ways) {
      if (!can_hold(held, full.scalar_type())) continue;
      SCOPED_TRACE(std::string(c.name) + " " + held.name);
      const std::string thrown = message_of([&] {
        expect_same_as_plain(
            held.mesh, {{full, held.placements}}, [&](const List& x) { return c.run(x[0]); }, c.options);
      });
      if (!thrown.empty()) ADD_FAILURE() << thrown;
    }
  }
}

void check_in_inference_mode(std::vector<Case> cases, const at::Tensor& full, const std::vector<PlacementCase>& ways) {
  for (Case& c : cases) {
    c.options = Oracle{.backward = false};
    c.run = [run = c.run](const at::Tensor& x) {
      c10::InferenceMode inference;
      return run(x.clone());
    };
  }
  check(cases, full, ways);
}

}  // namespace moonhalo::testing
