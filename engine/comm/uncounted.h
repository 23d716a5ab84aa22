// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moonhalo {

/// While one lives, what this thread's communicators move is not counted (CommStats, bytes_sent_by_this_thread): checks
/// are no part of what a program sends.
class Uncounted {
 public:
  Uncounted();
  ~Uncounted();
  Uncounted(const Uncounted&) = delete;
  Uncounted& operator=(const Uncounted&) = delete;
};

}  // namespace moonhalo
