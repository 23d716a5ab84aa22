// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

namespace moonhalo {

/// Kernels of Moonhalo in LibTorch's dispatcher: where a call of LibTorch may come to its code. A test compares the
/// list with the dispatcher; `moonhalo ops --intercepted` prints it. (Operators of namespace moonhalo are ours and not
/// listed.)
struct Interception {
  std::string_view operators;  ///< of namespace aten, with spaces between; "*": every operator of every namespace
  std::string_view keys;       ///< dispatch keys, with spaces between
  std::string_view when;       ///< whose calls come here
  std::string_view why;
};

const std::vector<Interception>& interceptions();

}  // namespace moonhalo
