// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/interpreter_lock.h"

#include <atomic>

namespace moonhalo {
namespace {

std::atomic<const InterpreterLock*> interpreter_lock{nullptr};

}  // namespace

void set_interpreter_lock(const InterpreterLock& lock) { interpreter_lock = &lock; }

InterpreterGivenUp::InterpreterGivenUp() {
  if (const InterpreterLock* lock = interpreter_lock) given_up_ = lock->give_up();
}

InterpreterGivenUp::~InterpreterGivenUp() {
  if (given_up_ != nullptr) interpreter_lock.load()->take(given_up_);
}

}  // namespace moonhalo
