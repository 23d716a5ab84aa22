// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "moonhalo/engine/comm/mpi/mpi_deadlock_detector.h"

namespace moonhalo {

/// Ranks that end notify the others, so that no rank waits for them. When MPI is finalised (by us or by the caller)
/// each rank sends a note: its rank, its exit status and how many calls it has made in each group. (A rank that is
/// suspended sends one of the groups of that world.) Notes go along a binomial tree that starts at their sender;
/// ranks pass them on while they wait for something, and until all have ended. Where MPI is Moonhalo's own, that is
/// waited for kStartTimeoutFactor times as long as for a verb, since others may have work of their own; a rank that
/// ends with a status other than 0 aborts them after two seconds. In a program's own MPI no rank is aborted.
class MpiExitNotifier {
 public:
  /// For the ranks of `comm`: one object for all communicators of these ranks in this order. Collective.
  static std::shared_ptr<MpiExitNotifier> of(MPI_Comm comm);

  /// Number of the next world of these ranks, and the counter of calls of a group; counted for as long as the process
  /// lives.
  uint64_t next_world() { return worlds_++; }
  uint64_t& calls(uint64_t group) {
    const std::lock_guard lock(mutex_);
    return calls_[group];
  }

  void set_calls(uint64_t group, uint64_t count) {
    const std::lock_guard lock(mutex_);
    calls_[group] = count;
  }

  /// Takes and passes on what has come. Cheap.
  void poll();
  /// This rank makes no more calls of `groups` in what `absence` stands for: a world and how often its ranks were
  /// suspended and have resumed.
  void suspend(uint64_t absence, const std::vector<uint64_t>& groups);
  /// The ranks that were suspended have resumed.
  void forget(uint64_t absence) {
    const std::lock_guard lock(mutex_);
    suspended_.erase(absence);
  }
  /// A rank that has ended, or was suspended in this `absence`, and never makes call number `call` of `group`; -1
  /// if there is none.
  int exited_rank(uint64_t group, uint64_t call, uint64_t absence) const;
  /// A rank that has made calls of `group` and has ended, or was suspended in this `absence`; -1 if there is
  /// none.
  int suspended_rank(uint64_t group, uint64_t absence);
  /// The status of a rank that has ended, else 0; the status of the first rank that ended with another than 0.
  int status(int rank) const;
  int status() const;
  /// As gone(), or a rank that has failed: that was suspended, or has ended with a status other than 0; -1 as far
  /// as is known. Any thread, where MPI allows it.
  int failed_rank(uint64_t group, uint64_t call, uint64_t absence);
  MpiDeadlockDetector& deadlock_detector() { return *deadlock_detector_; }
  void set_limit(std::chrono::milliseconds limit) { limit_ = limit; }

  /// The exit status that this process is about to end with, before MPI is finalised.
  static void set_exit_status(int status);

 private:
  explicit MpiExitNotifier(MPI_Comm comm);
  static int end_all(MPI_Comm, int, void*, void*);
  [[noreturn]] static void stop_all_ranks(const std::string& message, int status);
  void end();
  bool all_ended();
  void pass_on(const std::vector<uint64_t>& note);

  struct Sent {
    MPI_Request request;
    std::unique_ptr<std::vector<uint64_t>> note;
  };
  using Calls = std::map<uint64_t, uint64_t>;  // by group
  struct Ended {
    int status = 0;
    Calls calls;
  };
  std::vector<uint64_t> note(uint64_t absence, const Calls& calls) const;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  std::atomic<uint64_t> worlds_ = 0;
  std::chrono::milliseconds limit_;
  Calls calls_;                                         // of this rank
  std::map<int, Ended> ended_;                          // by rank
  std::map<uint64_t, std::map<int, Calls>> suspended_;  // by absence and rank
  std::vector<Sent> sent_;
  std::unique_ptr<MpiDeadlockDetector> deadlock_detector_;
  mutable std::mutex mutex_;
};

}  // namespace moonhalo
