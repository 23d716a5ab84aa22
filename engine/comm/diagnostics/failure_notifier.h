// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace moonhalo {

/// Communicators that let any thread report and query failures of ranks, also while this rank waits outside of a
/// collective, such as for its device.
class FailureNotifier {
 public:
  virtual ~FailureNotifier() = default;
  /// This rank takes part in nothing more: ranks that wait for it are notified within a moment.
  virtual void report_failure(const std::string& reason) = 0;
  /// This rank has begun call `number` of those that the devices of this group make among themselves, which all
  /// its ranks number in the same way; 0 says that they make any. Its own thread, before it ends.
  virtual void note_device_call(uint64_t number) = 0;
  /// Says why some rank takes no part in call `number` of the devices: it has failed, or has ended before it; "" as far
  /// as is known. Does not wait.
  virtual std::string peer_failure(uint64_t number) = 0;
};

}  // namespace moonhalo
