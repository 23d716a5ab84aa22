// SPDX-License-Identifier: Apache-2.0
#include "engine/mpi_start.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "engine/communicator.h"
#include "engine/ending.h"
#include "engine/mpi_leaving.h"
#include "engine/mpi_requests.h"
#include "engine/time_limit.h"

namespace moonhalo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kFinalize{10};

std::chrono::milliseconds limit_of_start{};

void finalize_at_exit(int status, void*) {
  if (mpi_finalized()) return;
  std::fflush(nullptr);
  const Watchdog watchdog("MPI_Finalize", limit_of_start * kPatience + kFinalize);
  MpiLeaving::leave_with(status & 0xff);
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
    const Watchdog watchdog("MPI_Init_thread", limit_of_start * kPatience);
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "make_mpi_world", "MPI_Init_thread");
  }
  on_exit(finalize_at_exit, nullptr);
}

void finish(MPI_Request& request, const char* maker, const char* call) {
  const std::chrono::milliseconds limit = default_time_limit();
  WaitingTime time;
  for (int done = 0;;) {
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), maker, call);
    if (done != 0) return;
    const Clock::duration waited = time.look();
    if (time.left(limit) <= Clock::duration::zero()) {
      int rank = 0;
      MPI_Comm_rank(MPI_COMM_WORLD, &rank);
      throw CommError(std::string(maker) + " timed out after " + seconds_text(limit) + " on rank " +
                      std::to_string(rank) +
                      " of MPI_COMM_WORLD: not all ranks of the communicator came\n  have  a wait in " + call +
                      "\n  fix   call it on every rank of the communicator; MOONHALO_TIMEOUT_S sets the time");
    }
    std::this_thread::sleep_for(std::min<Clock::duration>(waited / 20, std::chrono::milliseconds(1)));
  }
}

MPI_Comm duplicate(MPI_Comm comm, const char* maker) {
  auto* made = new MPI_Comm(MPI_COMM_NULL);  // MPI writes to it as long as the request lives, which may be for ever
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Comm_idup(comm, made, &request), maker, "MPI_Comm_idup");
  finish(request, maker, "MPI_Comm_idup");
  const MPI_Comm copy = *made;
  delete made;
  return copy;
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
  for (Clock::duration left = limit_; left > Clock::duration::zero(); time.look(), left = time.left(limit_)) {
    if (changed_.wait_for(lock, std::min<Clock::duration>(left, std::chrono::seconds(1)), [this] { return ended_; }))
      return;
  }
  std::fprintf(stderr,
               "moonhalo: %s did not end within %s\n  have  ranks that have not come, or that were lost\n"
               "  fix   look for a rank that hangs; this is %d times what MOONHALO_TIMEOUT_S or --timeout gives\n",
               call_.c_str(), seconds_text(limit_).c_str(), kPatience);
  std::fflush(nullptr);
  std::_Exit(kRankLostStatus);
}

}  // namespace moonhalo
