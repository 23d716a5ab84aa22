// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/AutogradState.h>

namespace moonhalo {

/// Keeps backward on the calling thread: hooks may be Lua functions of this rank's state, and a collective in a
/// backward formula must not wait on autograd's shared device threads.
class BackwardOnThisThread {
 public:
  BackwardOnThisThread() : before_(state().get_multithreading_enabled()) { state().set_multithreading_enabled(false); }
  ~BackwardOnThisThread() { state().set_multithreading_enabled(before_); }
  BackwardOnThisThread(const BackwardOnThisThread&) = delete;

 private:
  static c10::AutogradState& state() { return c10::AutogradState::get_tls_state(); }
  bool before_;
};

}  // namespace moonhalo
