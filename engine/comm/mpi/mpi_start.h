// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "moonhalo/engine/comm/mpi/mpi_checked.h"

namespace moonhalo {

/// MPI_Init_thread, unless it has been called; MPI is then finalised at exit. A rank that exits with a status other
/// than 0 gives the others some seconds to end as well, then it aborts them: none waits for what it will never do.
void start_mpi();

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
