// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moonhalo/engine/base/scoped_value.h"

namespace moonhalo {

/// In a redistribution over thousands of ranks every rank copies a region for each of the others. In a dry run such
/// copies compute nothing, and take as long as all else of a script. A recorder that only counts them is as well served
/// by one copy and their number. Nothing of this file is collective.

/// While it exists, exchanges of this rank make one copy for all peers in a row whose regions have the same shapes, if
/// tensors are fake and the ranks are, too. Messages, bytes and memory stay the same.
class JoinEqualCopies {
 public:
  JoinEqualCopies();

 private:
  ScopedValue<bool> joins_;
};

/// While it exists, an operator that this rank calls stands for `calls` of the same shapes.
class EqualCopies {
 public:
  explicit EqualCopies(int64_t calls);
  /// The number of calls that one stands for now; 1 outside of such a scope.
  static int64_t current();

 private:
  ScopedValue<int64_t> calls_;
};

}  // namespace moonhalo
