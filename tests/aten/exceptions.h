// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "tests/aten/trial.h"

namespace moonhalo::testing {

/// An operator (by its base name: all overloads, in-place and out= forms; or one by full name) and a reason.
struct Exception {
  std::string_view name;
  std::string_view why;
};

/// Not called at all by the sweep over all operators.
const std::vector<Exception>& untried();
/// No way to hold its tensors is answered on blocks: gathered, or refused with a clear error.
const std::vector<Exception>& never_on_blocks();

/// Null when `op` is not in the list.
const Exception* find_exception(const std::vector<Exception>& list, const Operator& op);

/// What the sweep must not print, or "": a wrong value; an operator that is not tried, or never answered on blocks, without
/// an exception; an exception that is not one any more. `tally` with no samples: not tried.
std::string unexpected(const Operator& op, const Tally& tally);

}  // namespace moonhalo::testing
