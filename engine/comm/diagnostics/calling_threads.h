// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moonhalo {

/// Threads of this process that make calls to other processes. Only when all of them wait at once does the process
/// wait: what one waits for may come by another.
int calling_threads();
/// This thread is one of them until it ends.
void count_calling_thread();

/// Counts one for as long as it lives, on whatever thread: work that is handed to a thread counts from there on.
class ActiveCall {
 public:
  ActiveCall();
  ~ActiveCall();
  ActiveCall(const ActiveCall&) = delete;
};
/// This thread's calls are counted by ActiveCall, or it waits for a thread whose are.
class CountedElsewhere {
 public:
  CountedElsewhere();
  ~CountedElsewhere();
  CountedElsewhere(const CountedElsewhere&) = delete;
};

}  // namespace moonhalo
