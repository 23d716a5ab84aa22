// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moonhalo {

/// Communicators whose ranks' failures any thread can hear of and tell, also while this rank waits where no verb looks,
/// such as for its device.
class TellsFailures {
 public:
  virtual ~TellsFailures() = default;
  /// This rank takes part in nothing more: ranks that wait for it hear of that within a moment.
  virtual void tell_failure(const std::string& reason) = 0;
  /// Says why some rank of this group takes part in nothing more; "" as far as is known. Does not wait.
  virtual std::string heard_failure() = 0;
};

}  // namespace moonhalo
