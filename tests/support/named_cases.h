// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tests/support/oracle.h"

namespace moonhalo::testing {

/// One of many programs; the name stands in front of what is reported of it.
struct NamedCase {
  std::string name;
  std::vector<Input> inputs;
  Program program;
};

/// expect_same_as_plain for each case in turn, on ranks that are started once: for tables of
/// thousands of small cases. At most five are reported.
void expect_each_same_as_plain(std::vector<int64_t> mesh_shape, const std::vector<NamedCase>& cases,
                               Oracle options = {});

}  // namespace moonhalo::testing
