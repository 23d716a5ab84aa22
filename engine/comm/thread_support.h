// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moonhalo {

/// Communicators whose messages another's library carries. Those that are not may be used while the program
/// communicates.
class ThreadSupport {
 public:
  virtual ~ThreadSupport() = default;
  /// True if a thread may use this communicator while other threads of the program use that library.
  virtual bool any_thread() const = 0;
};

}  // namespace moonhalo
