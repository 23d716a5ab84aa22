// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

/// A collective under way that can be looked at without waiting for it.
class Pollable {
 public:
  virtual ~Pollable() = default;
  /// True if wait() would return, or throw, without waiting for another rank; what it would throw may be thrown here.
  /// Says nothing of other ranks.
  virtual bool ready() = 0;
};

/// ready() of `work`; work that cannot be looked at has ended.
inline bool is_ready(Work& work) {
  auto* pollable = dynamic_cast<Pollable*>(&work);
  return pollable == nullptr || pollable->ready();
}

}  // namespace moonhalo
