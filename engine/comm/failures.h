// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace moonhalo {

/// Communicators whose ranks' failures any thread can hear of and tell, also while this rank waits where no verb looks,
/// such as for its device.
class TellsFailures {
 public:
  virtual ~TellsFailures() = default;
  /// This rank takes part in nothing more: ranks that wait for it hear of that within a moment.
  virtual void tell_failure(const std::string& reason) = 0;
  /// This rank has begun call `number` of those that the devices of this group make among themselves, which all its
  /// ranks number alike; 0 says that they make any. Its own thread, before it ends.
  virtual void note_device_call(uint64_t number) = 0;
  /// Says why some rank takes no part in call `number` of the devices: it has failed, or has ended before it; "" as far
  /// as is known. Does not wait.
  virtual std::string heard_failure(uint64_t number) = 0;
};

}  // namespace moonhalo
