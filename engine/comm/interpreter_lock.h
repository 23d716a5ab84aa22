// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moonhalo {

/// The lock of an interpreter that all threads of this process share, such as Python's.
struct InterpreterLock {
  /// Releases the lock if the calling thread holds it, and returns what `acquire` needs. Else returns null.
  void* (*release)();
  void (*acquire)(void* state);
};
/// Set once, before any rank waits; lives as long as the process.
void set_interpreter_lock(const InterpreterLock& lock);

/// A thread that waits for another rank makes one first: the other may need the interpreter to come. Neither made nor
/// destroyed while the thread holds a mutex that others take while they hold the interpreter.
class InterpreterReleased {
 public:
  InterpreterReleased();
  ~InterpreterReleased();
  InterpreterReleased(const InterpreterReleased&) = delete;
  InterpreterReleased& operator=(const InterpreterReleased&) = delete;

 private:
  void* released_state_ = nullptr;
};

}  // namespace moonhalo
