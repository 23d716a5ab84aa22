// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moonhalo {

/// While one lives, what this thread's communicators move is not counted (CommStats, bytes_sent_by_this_thread):
/// checks are not part of what a program sends.
class ScopedStatsPause {
 public:
  ScopedStatsPause();
  ~ScopedStatsPause();
  ScopedStatsPause(const ScopedStatsPause&) = delete;
  ScopedStatsPause& operator=(const ScopedStatsPause&) = delete;
};

}  // namespace moonhalo
