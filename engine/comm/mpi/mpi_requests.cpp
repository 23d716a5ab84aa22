// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/mpi/mpi_requests.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

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
  if (incoming_.requests.empty() && outgoing_.requests.empty()) return;
  new std::vector<at::Tensor>(std::move(kept_));
  new MpiGroupPtr(group_);
}

void MpiRequests::send(const void* data, size_t bytes, int peer) {
  in_pieces(bytes, [&](size_t begin, int piece) {
    check_mpi(MPI_Isend(static_cast<const char*>(data) + begin, piece, MPI_BYTE, peer, tag_, group_->handle(),
                        outgoing_.add(peer, piece)),
              verb_, "MPI_Isend");
  });
}

void MpiRequests::receive(void* data, size_t bytes, int peer) {
  in_pieces(bytes, [&](size_t begin, int piece) {
    check_mpi(MPI_Irecv(static_cast<char*>(data) + begin, piece, MPI_BYTE, peer, tag_, group_->handle(),
                        incoming_.add(peer, piece)),
              verb_, "MPI_Irecv");
  });
}

// However it ends.
struct MpiRequests::GoesOn {
  MpiGroup& group;
  ~GoesOn() { group.world().exit_notifier->deadlock_detector().go_on(); }
};

void MpiRequests::settle() {
  WaitingTime time;
  settle(time);
}

void MpiRequests::settle(WaitingTime& time) {
  const UsesMpi mpi(verb_);
  const GoesOn goes_on{*group_};
  const Wait wait{time, PollingPause(0)};
  std::optional<InterpreterReleased> interpreter_released;
  while (!group_->settled(number_)) {
    if (!interpreter_released) interpreter_released.emplace();
    pause(wait, /*begins=*/true);
  }
}

// Asks without taking: wait() still finds the sizes of what has come.
bool MpiRequests::ready() {
  const UsesMpi mpi(verb_);
  if (!group_->settled(number_)) {
    group_->check_left(number_, verb_);
    return false;
  }
  const auto done = [this](MPI_Request request) {
    int is_done = 0;
    check_mpi(MPI_Request_get_status(request, &is_done, MPI_STATUS_IGNORE), verb_, "MPI_Request_get_status");
    return is_done != 0;
  };
  return std::all_of(incoming_.requests.begin(), incoming_.requests.end(), done) &&
         std::all_of(outgoing_.requests.begin(), outgoing_.requests.end(), done);
}

void MpiRequests::wait_received() {
  const UsesMpi mpi(verb_);
  WaitingTime time;
  settle(time);
  check_sizes(wait_for(incoming_, time));
  incoming_.clear();
}

void MpiRequests::wait() {
  const UsesMpi mpi(verb_);
  WaitingTime time;
  settle(time);
  const std::vector<MPI_Status> received = wait_for(incoming_, time);
  wait_for(outgoing_, time);
  outgoing_.clear();
  kept_.clear();
  check_sizes(received);
  incoming_.clear();
}

// Returns how they ended.
std::vector<MPI_Status> MpiRequests::wait_for(Open& open, WaitingTime& time) {
  std::vector<MPI_Status> statuses(open.requests.size());
  if (statuses.empty()) return statuses;
  const Wait wait{time, PollingPause(open.bytes)};
  std::optional<InterpreterReleased> interpreter_released;
  for (;;) {
    int done = 0;
    const int code = MPI_Testall(static_cast<int>(open.requests.size()), open.requests.data(), &done, statuses.data());
    if (code != MPI_SUCCESS) throw_failure(code, open, statuses);
    if (done != 0) break;
    if (!interpreter_released) interpreter_released.emplace();
    pause(wait, /*begins=*/false);
  }
  open.requests.clear();
  return statuses;
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

MPI_Request* MpiRequests::Open::add(int peer, int piece) {
  infos.push_back({peer, piece});
  bytes += static_cast<size_t>(piece);
  return &requests.emplace_back(MPI_REQUEST_NULL);
}

void MpiRequests::Open::clear() {
  requests.clear();
  infos.clear();
  bytes = 0;
}

void MpiRequests::pause(const Wait& wait, bool begins) {
  UsesMpi::check_still(verb_);
  const Clock::duration waited = wait.time.poll() - wait.before;
  if (wait.time.left(timeout_) <= Clock::duration::zero()) throw_timeout();
  if (waited <= PollingPause::kLongest) return wait.polling.pause(waited);
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
  for (const Open* open : {&incoming_, &outgoing_}) {
    for (size_t i = 0; i < open->requests.size(); ++i) {
      int done = 0;
      MPI_Request_get_status(open->requests[i], &done, MPI_STATUS_IGNORE);
      if (done == 0 && open->infos[i].peer >= 0) missing.insert(open->infos[i].peer);
    }
  }
  text << (missing.empty() ? "not all ranks of the group came" : "no message to or from rank");
  for (const int peer : missing) text << (peer == *missing.begin() ? " " : ", ") << peer;
  text << "\n  have  ranks that make different calls, or a rank that was lost"
       << "\n  fix   look for ranks that take another branch; MOONHALO_TIMEOUT_S sets the time";
  throw CommError(text.str());
}

void MpiRequests::throw_failure(int code, const Open& open, const std::vector<MPI_Status>& statuses) {
  if (code == MPI_ERR_IN_STATUS) {
    for (size_t i = 0; i < statuses.size(); ++i) {
      const int error = statuses[i].MPI_ERROR;
      if (error == MPI_SUCCESS || error == MPI_ERR_PENDING) continue;
      std::ostringstream call;
      call << "a message " << (&open == &incoming_ ? "from" : "to") << " rank " << open.infos[i].peer;
      check_mpi(error, verb_, call.str().c_str());
    }
  }
  check_mpi(code, verb_, "MPI_Testall");
  TORCH_INTERNAL_ASSERT(false, "MPI_Testall failed without an error");
}

void MpiRequests::check_sizes(const std::vector<MPI_Status>& statuses) {
  for (size_t i = 0; i < incoming_.infos.size(); ++i) {
    const auto& [peer, expected] = incoming_.infos[i];
    if (peer < 0) continue;  // a collective call
    int bytes = 0;
    MPI_Get_count(&statuses[i], MPI_BYTE, &bytes);
    TORCH_CHECK_VALUE(bytes == expected, verb_, ": a message from rank ", peer, " does not fit its receive\n  have  ",
                      bytes, " bytes sent, ", expected,
                      " expected\n  fix   messages of one pair of ranks match in the order of the lists");
  }
}

}  // namespace moonhalo
