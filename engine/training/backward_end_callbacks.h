// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <set>

namespace moonhalo {

/// The backward passes of one rank whose end is waited for. They nest: a checkpointed segment that is computed again
/// has one of its own. It outlives them.
class BackwardEndCallbacks {
 public:
  /// True within a backward pass.
  static bool under_way();
  /// Has `ended` called when the pass under way ends, once however often it is asked for; `failed` instead when it, or
  /// `ended`, throws: while the error leaves the pass, so before anybody catches it. `failed` must not throw.
  void await(std::function<void()> ended, std::function<void()> failed);
  bool waits() const { return !passes_.empty(); }

 private:
  std::set<int> passes_;
};

}  // namespace moonhalo
