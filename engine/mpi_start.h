// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace moonhalo {

/// What waits for ranks that may still start or work on their own has so many times the time limit of a verb.
inline constexpr int kPatience = 10;

/// MPI_Init_thread, unless somebody has called it; MPI is then finalised at exit. A rank that exits with a status other
/// than 0 gives the others some seconds to end as well, then it aborts them: none waits for what it will never do.
void start_mpi();

/// Waits for `request`, which all ranks must join within the time limit; CommError in the name of `maker`.
void finish(MPI_Request& request, const char* maker, const char* call);
/// MPI_Comm_dup with that limit.
MPI_Comm duplicate(MPI_Comm comm, const char* maker);

/// Ends the process with kRankLostStatus and a message when it lives for longer than `limit`: for calls of MPI that
/// nothing else wakes.
class Watchdog {
 public:
  Watchdog(std::string call, std::chrono::milliseconds limit);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;

 private:
  void watch();
  std::string call_;
  std::chrono::milliseconds limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace moonhalo
