// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/mpi/mpi_start.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "moonhalo/engine/comm/diagnostics/process_exit.h"
#include "moonhalo/engine/comm/mpi/mpi_exit_notifier.h"
#include "moonhalo/engine/comm/time_limit.h"

namespace moonhalo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kFinalize{10};

std::chrono::milliseconds limit_of_start{};

void finalize_at_exit(int status, void*) {
  if (mpi_finalized()) return;
  std::fflush(nullptr);
  const Watchdog watchdog("MPI_Finalize", limit_of_start * kStartTimeoutFactor + kFinalize);
  MpiExitNotifier::set_exit_status(status & 0xff);
  MPI_Finalize();
}

}  // namespace

void start_mpi() {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  if (mpi_initialized()) return;
  limit_of_start = default_time_limit();
  int provided = 0;
  {
    const Watchdog watchdog("MPI_Init_thread", limit_of_start * kStartTimeoutFactor);
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "make_mpi_world", "MPI_Init_thread");
  }
  on_exit(finalize_at_exit, nullptr);
}

// Without a thread nothing is lost but the limit.
Watchdog::Watchdog(std::string call, std::chrono::milliseconds limit) : call_(std::move(call)), limit_(limit) {
  try {
    thread_ = std::thread([this] { watch(); });
  } catch (const std::system_error&) {
  }
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::watch() {
  WaitingTime time;
  std::unique_lock lock(mutex_);
  for (Clock::duration left = limit_; left > Clock::duration::zero(); time.poll(), left = time.left(limit_)) {
    if (changed_.wait_for(lock, std::min<Clock::duration>(left, std::chrono::seconds(1)), [this] { return ended_; }))
      return;
  }
  std::fprintf(stderr,
               "moonhalo: %s did not end within %s\n  have  ranks that have not come, or that were lost\n"
               "  fix   look for a rank that hangs; this is %d times what MOONHALO_TIMEOUT_S or --timeout gives\n",
               call_.c_str(), seconds_text(limit_).c_str(), kStartTimeoutFactor);
  std::fflush(nullptr);
  std::_Exit(kRankLostStatus);
}

}  // namespace moonhalo
