// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cfenv>
#include <vector>

namespace moonhalo::scripting {

/// While one lives, this thread and the threads of LibTorch that work for it have the default floating-point
/// environment: no traps, rounding to nearest, subnormal numbers kept. Numbers of a script do not depend on what the
/// program has set, and none of them stops it. At its end all these threads have what they had before, flags included.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment();
  ~DefaultFloatEnvironment();
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;

 private:
  friend class CallersFloatEnvironment;
  static thread_local const DefaultFloatEnvironment* of_thread_;

  const DefaultFloatEnvironment* before_;
  std::fenv_t callers_;
  bool differs_;                        // in more than flags from the default one
  std::vector<std::fenv_t> of_others_;  // of LibTorch's other threads, by their numbers; none where it does not differ
};

/// Around a function of the caller's, such as those of an mh_transport: it runs with the environment that the calling
/// thread had. The flags that it raises are not kept. Nothing on a thread of Moonhalo's own.
class CallersFloatEnvironment {
 public:
  CallersFloatEnvironment();
  ~CallersFloatEnvironment();
  CallersFloatEnvironment(const CallersFloatEnvironment&) = delete;

 private:
  bool switched_;
};

}  // namespace moonhalo::scripting
