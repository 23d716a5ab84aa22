// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/mpi/mpi_checked.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <type_traits>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/interpreter_lock.h"
#include "moonhalo/engine/comm/time_limit.h"

namespace moonhalo {
namespace {

using Clock = std::chrono::steady_clock;

std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING + 1] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, length);
}

bool is(int (*question)(int*)) {
  int answer = 0;
  question(&answer);
  return answer != 0;
}

}  // namespace

void check_mpi(int code, const char* verb, const char* call) {
  if (code == MPI_SUCCESS) return;
  throw CommError(std::string(verb) + ": " + call + " failed: " + error_text(code));
}

void check_library(const char* maker) {
  // Two kinds of binary interface are in use: handles are addresses (Open MPI and its kin), or ints (MPICH, Intel,
  // Cray).
  constexpr bool built_with_addresses = std::is_pointer_v<MPI_Comm>;
  std::string text(8192, '\0');  // longer than what any of them writes
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  text.resize(std::min<size_t>(length, text.find_first_of("\n\r,")));
  const bool has_addresses =
      text.find("Open MPI") != std::string::npos || text.find("Spectrum MPI") != std::string::npos;
  TORCH_CHECK_NOT_IMPLEMENTED(has_addresses == built_with_addresses, maker,
                              ": the program's MPI is another than the one that Moonhalo was built with\n  have  ",
                              text, " in the program, ", built_with_addresses ? "Open MPI" : "MPICH or its kin",
                              " in Moonhalo",
                              "\n  fix   give functions instead of a communicator: mh_mpi_transport of "
                              "<moonhalo/moonhalo_mpi.h>; or build both with one MPI");
}

bool mpi_initialized() { return is(MPI_Initialized); }
bool mpi_finalized() { return is(MPI_Finalized); }

namespace {

std::atomic<bool> uses_end{false};
std::atomic<int> uses{0};

}  // namespace

UsesMpi::UsesMpi() {
  ++uses;
  may_ = !uses_end && !mpi_finalized();
  if (!may_) --uses;
}
UsesMpi::UsesMpi(const char* verb) : UsesMpi() {
  if (!may_) check_still(verb);
}
UsesMpi::~UsesMpi() {
  if (may_) --uses;
}

bool UsesMpi::ended() { return uses_end || mpi_finalized(); }

void UsesMpi::check_still(const char* verb) {
  if (ended()) throw CommError(std::string(verb) + ": MPI has been finalised; no rank can be reached any more");
}

void UsesMpi::end() {
  uses_end = true;
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(10);
  while (uses > 0 && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

void finish(MPI_Request& request, const char* maker, const char* call) {
  const std::chrono::milliseconds limit = default_time_limit();
  WaitingTime time;
  const InterpreterReleased interpreter_released;
  for (int done = 0;;) {
    UsesMpi::check_still(maker);
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), maker, call);
    if (done != 0) return;
    const Clock::duration waited = time.poll();
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

}  // namespace moonhalo
