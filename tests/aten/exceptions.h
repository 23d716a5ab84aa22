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

/// A dim of a tensor that is answered on blocks in no way, though the operator is in others.
const std::vector<Exception>& not_on_every_dim();

/// Null when `op` is not in the list.
const Exception* find_exception(const std::vector<Exception>& list, const Operator& op);

/// The outcome that the sweep must not print, or "": a wrong value; an operator that is not tried, or never answered on
/// blocks, without an exception; a dim that is not answered on blocks; an exception that is not one any more. `tally`
/// with no samples: not tried. `missing`: the dims that no trial answered on blocks, as text, "" when there are none.
std::string unexpected(const Operator& op, const Tally& tally, const std::string& missing = "");

}  // namespace moonhalo::testing
