// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace moonhalo {

/// Finds that all processes wait for each other to begin a call, in different groups, so that none can go on. A
/// rank all of whose threads that make calls have waited for a second notifies rank 0, and again when one
/// continues; when all that have not ended wait and nothing has been received for a second of polling, rank 0 sends
/// to all what they wait in. Any thread.
class MpiDeadlockDetector {
 public:
  MpiDeadlockDetector(MPI_Comm comm, std::function<bool(int)> has_ended);

  /// This thread still waits to begin a call, since `waited`; what all wait in if they are stuck, else "". Called every
  /// few milliseconds.
  std::string poll(std::chrono::steady_clock::duration waited, const std::function<std::string()>& describe);
  /// The last text that `look` has returned on this rank; it is forgotten.
  std::string take_report();
  /// This thread goes on.
  void go_on();
  /// Rank 0's part; again and again while it waits or has ended.
  void serve();

 private:
  void send_wait();
  void withdraw_wait();
  void serve_locked();
  void send(int peer, int tag, const std::string& text);
  bool receive(int source, int tag, std::string& text, int* from);
  void finish_sends();

  struct Sent {
    MPI_Request request;
    std::string text;
  };
  MPI_Comm comm_;
  std::function<bool(int)> has_ended_;
  int rank_ = 0, size_ = 1;
  std::mutex mutex_;
  struct Wait {
    std::string text, report;
  };
  std::map<std::thread::id, Wait> waits_;
  std::atomic<bool> some_wait_ = false, was_deadlocked_ = false;
  std::string deadlock_report_;
  uint64_t reports_sent_ = 0;  // how often this rank has reported that it waits
  bool wait_is_reported_ = false;
  std::vector<std::string> states_;  // at rank 0: number and text of each rank's wait, "" when it goes on
  std::chrono::steady_clock::time_point last_poll_time_{};
  int quiet_ = 0;
  std::list<Sent> sent_;
};

}  // namespace moonhalo
