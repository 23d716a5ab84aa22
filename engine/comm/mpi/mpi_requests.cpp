// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/mpi/mpi_requests.h"

#include <c10/util/Exception.h>
#include <sched.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "moonhalo/engine/comm/comm_context.h"
#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/interpreter_lock.h"

namespace moonhalo {
namespace {

// MPI counts in int; larger messages are sent in pieces of this size.
constexpr size_t kLargestMessage = size_t{1} << 30;
// A rank that waits looks so often for ranks that have ended.
constexpr std::chrono::milliseconds kPollEvery{20};

}  // namespace

size_t chunk_bytes_from_environment() {
  const char* text = std::getenv("MOONHALO_MPI_CHUNK_BYTES");
  if (text == nullptr || *text == '\0') return kLargestMessage;
  char* end = nullptr;
  const long long bytes = std::strtoll(text, &end, 10);
  TORCH_CHECK_VALUE(*end == '\0' && bytes > 0 && bytes <= INT_MAX,
                    "MOONHALO_MPI_CHUNK_BYTES: not a number of bytes from 1 to 2147483647",
                    "\n  have  MOONHALO_MPI_CHUNK_BYTES=", text, "\n  fix   unset it, or set it to 1073741824");
  return static_cast<size_t>(bytes);
}

MpiRequests::MpiRequests(MpiGroupPtr group, const char* verb, int tag, std::chrono::milliseconds timeout, size_t chunk)
    : group_(std::move(group)), verb_(verb), tag_(tag), timeout_(timeout), chunk_(chunk), number_(group_->number()) {}

MpiRequests::~MpiRequests() {
  if (requests_.empty()) return;
  new std::vector<at::Tensor>(std::move(kept_));
  new MpiGroupPtr(group_);
}

void MpiRequests::send(const void* data, size_t bytes, int peer) {
  in_pieces(bytes, [&](size_t begin, int piece) {
    check_mpi(
        MPI_Isend(static_cast<const char*>(data) + begin, piece, MPI_BYTE, peer, tag_, group_->handle(), add(peer, -1)),
        verb_, "MPI_Isend");
  });
}

void MpiRequests::receive(void* data, size_t bytes, int peer) {
  in_pieces(bytes, [&](size_t begin, int piece) {
    check_mpi(
        MPI_Irecv(static_cast<char*>(data) + begin, piece, MPI_BYTE, peer, tag_, group_->handle(), add(peer, piece)),
        verb_, "MPI_Irecv");
  });
}

// However it ends.
struct MpiRequests::GoesOn {
  MpiGroup& group;
  ~GoesOn() { group.world().exit_notifier->deadlock_detector().go_on(); }
};

void MpiRequests::settle() {
  const UsesMpi mpi(verb_);
  WaitingTime time;
  const GoesOn goes_on{*group_};
  std::optional<InterpreterReleased> interpreter_released;
  while (!group_->settled(number_)) {
    if (!interpreter_released) interpreter_released.emplace();
    pause(time, /*begins=*/true);
  }
}

// Asks without taking: wait() still finds the sizes of what has come.
bool MpiRequests::ready() {
  const UsesMpi mpi(verb_);
  if (!group_->settled(number_)) {
    group_->check_left(number_, verb_);
    return false;
  }
  return std::all_of(requests_.begin(), requests_.end(), [this](MPI_Request request) {
    int done = 0;
    check_mpi(MPI_Request_get_status(request, &done, MPI_STATUS_IGNORE), verb_, "MPI_Request_get_status");
    return done != 0;
  });
}

void MpiRequests::wait() {
  const UsesMpi mpi(verb_);
  settle();
  if (requests_.empty()) return;
  std::vector<MPI_Status> statuses(requests_.size());
  WaitingTime time;
  std::optional<InterpreterReleased> interpreter_released;
  for (;;) {
    int done = 0;
    const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses.data());
    if (code != MPI_SUCCESS) throw_failure(code, statuses);
    if (done != 0) break;
    if (!interpreter_released) interpreter_released.emplace();
    pause(time, /*begins=*/false);
  }
  requests_.clear();
  kept_.clear();
  check_sizes(statuses);
}

template <typename Post>
void MpiRequests::in_pieces(size_t bytes, const Post& post) {
  size_t begin = 0;
  do {
    const size_t piece = std::min(chunk_, bytes - begin);
    post(begin, static_cast<int>(piece));
    begin += piece;
  } while (begin < bytes);
}

MPI_Request* MpiRequests::add(int peer, int expected) {
  infos_.push_back({peer, expected});
  return &requests_.emplace_back(MPI_REQUEST_NULL);
}

// On a core that others keep busy a yield returns after their slice of time, milliseconds later, whatever has come
// meanwhile; from a short sleep the kernel wakes us before them. (Two ranks beside two busy loops: 8 s instead of 60.)
void MpiRequests::give_way() {
  Clock::time_point& crowded_until = comm_context->crowded_until;
  const Clock::time_point before = Clock::now();
  if (before < crowded_until) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    return;
  }
  sched_yield();
  if (Clock::now() - before > std::chrono::microseconds(200)) crowded_until = before + std::chrono::milliseconds(200);
}

// Busy at first, for the sake of speed; then friendly to other ranks that share the core.
void MpiRequests::pause(WaitingTime& time, bool begins) {
  UsesMpi::check_still(verb_);
  const Clock::duration waited = time.poll();
  if (time.left(timeout_) <= Clock::duration::zero()) throw_timeout();
  if (waited > std::chrono::microseconds(20)) give_way();
  if (waited < std::chrono::milliseconds(2)) return;
  if (waited > kPollEvery && Clock::now() - last_poll_ > kPollEvery) {
    last_poll_ = Clock::now();
    if (begins) group_->check_deadlock(number_, waited);  // of ranks that know it and part all shall say so
    group_->check_left(number_, verb_);
  }
  std::this_thread::sleep_for(std::min<Clock::duration>(waited / 20, std::chrono::microseconds(200)));
}

void MpiRequests::throw_timeout() {
  std::ostringstream text;
  text << verb_ << " timed out after " << seconds_text(timeout_) << " on rank " << group_->rank() << ": ";
  std::set<int> missing;
  for (size_t i = 0; i < requests_.size(); ++i) {
    int done = 0;
    MPI_Request_get_status(requests_[i], &done, MPI_STATUS_IGNORE);
    if (done == 0 && infos_[i].peer >= 0) missing.insert(infos_[i].peer);
  }
  text << (missing.empty() ? "not all ranks of the group came" : "no message to or from rank");
  for (const int peer : missing) text << (peer == *missing.begin() ? " " : ", ") << peer;
  text << "\n  have  ranks that make different calls, or a rank that was lost"
       << "\n  fix   look for ranks that take another branch; MOONHALO_TIMEOUT_S sets the time";
  throw CommError(text.str());
}

void MpiRequests::throw_failure(int code, const std::vector<MPI_Status>& statuses) {
  if (code == MPI_ERR_IN_STATUS) {
    for (size_t i = 0; i < statuses.size(); ++i) {
      const int error = statuses[i].MPI_ERROR;
      if (error == MPI_SUCCESS || error == MPI_ERR_PENDING) continue;
      std::ostringstream call;
      call << "a message " << (infos_[i].expected >= 0 ? "from" : "to") << " rank " << infos_[i].peer;
      check_mpi(error, verb_, call.str().c_str());
    }
  }
  check_mpi(code, verb_, "MPI_Testall");
  TORCH_INTERNAL_ASSERT(false, "MPI_Testall failed without an error");
}

void MpiRequests::check_sizes(const std::vector<MPI_Status>& statuses) {
  for (size_t i = 0; i < infos_.size(); ++i) {
    if (infos_[i].expected < 0) continue;
    int bytes = 0;
    MPI_Get_count(&statuses[i], MPI_BYTE, &bytes);
    TORCH_CHECK_VALUE(bytes == infos_[i].expected, verb_, ": a message from rank ", infos_[i].peer,
                      " does not fit its receive\n  have  ", bytes, " bytes sent, ", infos_[i].expected,
                      " expected\n  fix   messages of one pair of ranks match in the order of the lists");
  }
}

}  // namespace moonhalo
