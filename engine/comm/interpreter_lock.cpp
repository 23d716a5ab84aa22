// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/interpreter_lock.h"

#include <atomic>

namespace moonhalo {
namespace {

std::atomic<const InterpreterLock*> interpreter_lock{nullptr};

}  // namespace

void set_interpreter_lock(const InterpreterLock& lock) { interpreter_lock = &lock; }

InterpreterReleased::InterpreterReleased() {
  if (const InterpreterLock* lock = interpreter_lock) released_state_ = lock->release();
}

InterpreterReleased::~InterpreterReleased() {
  if (released_state_ != nullptr) interpreter_lock.load()->acquire(released_state_);
}

}  // namespace moonhalo
