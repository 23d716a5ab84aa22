// SPDX-License-Identifier: Apache-2.0
// Threads inherit the environment of the thread that made them. Programs compiled with OpenMP share its threads with
// LibTorch, so these may have been made with traps; they are visited wherever the caller's environment is another than
// the default one.
#include "moonhalo/scripting/embed/float_environment.h"

#include <ATen/Parallel.h>

#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#include "moonhalo/engine/base/parallel.h"

namespace moonhalo::scripting {
namespace {

/// True if this thread may compute otherwise than with the default environment.
bool control_differs() {
#if defined(__x86_64__)
  constexpr unsigned kFlags = 0x3f, kDefault = 0x1f80;
  return (_mm_getcsr() & ~kFlags) != kDefault;
#else
  return true;
#endif
}

}  // namespace

thread_local const DefaultFloatEnvironment* DefaultFloatEnvironment::of_thread_ = nullptr;

// First the other threads: those that are made here inherit what the caller has, and get it back.
DefaultFloatEnvironment::DefaultFloatEnvironment() : before_(of_thread_), differs_(control_differs()) {
  std::fegetenv(&callers_);
  const int threads = differs_ ? at::get_num_threads() : 1;
  if (threads > 1) {
    of_others_.resize(threads, callers_);
    on_each_thread(threads, [this](int thread) {
      if (thread == 0) return;
      std::fegetenv(&of_others_[thread]);
      std::fesetenv(FE_DFL_ENV);
    });
  }
  std::fesetenv(FE_DFL_ENV);
  of_thread_ = this;
}

DefaultFloatEnvironment::~DefaultFloatEnvironment() {
  if (!of_others_.empty()) {
    on_each_thread(static_cast<int>(of_others_.size()), [this](int thread) {
      if (thread != 0) std::fesetenv(&of_others_[thread]);
    });
  }
  of_thread_ = before_;
  std::fesetenv(&callers_);
}

CallersFloatEnvironment::CallersFloatEnvironment() {
  const DefaultFloatEnvironment* const call = DefaultFloatEnvironment::of_thread_;
  switched_ = call != nullptr && call->differs_;
  if (switched_) std::fesetenv(&call->callers_);
}

CallersFloatEnvironment::~CallersFloatEnvironment() {
  if (switched_) std::fesetenv(FE_DFL_ENV);
}

}  // namespace moonhalo::scripting
