// SPDX-License-Identifier: Apache-2.0
#include "tests/support/held.h"

#include <gtest/gtest.h>

namespace moonhalo::testing {

void check(const std::vector<Case>& cases, const at::Tensor& full, const std::vector<Held>& ways) {
  for (const Case& c : cases) {
    for (const Held& held : ways) {
      SCOPED_TRACE(std::string(c.name) + " " + held.name);
      expect_same_as_plain(
          held.mesh, {{full, held.placements}}, [&](const List& x) { return c.run(x[0]); },
          c.options);
    }
  }
}

}  // namespace moonhalo::testing
