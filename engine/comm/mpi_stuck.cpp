// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/mpi_stuck.h"

#include <cstring>
#include <utility>

#include "moonhalo/engine/comm/calling_threads.h"
#include "moonhalo/engine/comm/mpi_checked.h"

namespace moonhalo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kStateTag = 2, kVerdictTag = 3;
constexpr std::chrono::seconds kStuckAfter{1};
// Looks, not time: a job that was suspended hears what has been sent before it judges.
constexpr int kQuietLooks = 50;
constexpr std::chrono::milliseconds kProbeEvery{20};

std::string number_text(uint64_t number) { return std::string(reinterpret_cast<const char*>(&number), sizeof(number)); }

}  // namespace

MpiStuck::MpiStuck(MPI_Comm comm, std::function<bool(int)> has_ended) : comm_(comm), has_ended_(std::move(has_ended)) {
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
  states_.resize(size_);
}

void MpiStuck::send(int peer, int tag, const std::string& text) {
  Sent& sent = sent_.emplace_back(Sent{MPI_REQUEST_NULL, text});
  MPI_Isend(sent.text.data(), static_cast<int>(sent.text.size()), MPI_BYTE, peer, tag, comm_, &sent.request);
}

bool MpiStuck::receive(int source, int tag, std::string& text, int* from) {
  int come = 0;
  MPI_Message message;
  MPI_Status status;
  if (MPI_Improbe(source, tag, comm_, &come, &message, &status) != MPI_SUCCESS || come == 0) return false;
  int bytes = 0;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  text.resize(bytes);
  MPI_Mrecv(text.data(), bytes, MPI_BYTE, &message, MPI_STATUS_IGNORE);
  *from = status.MPI_SOURCE;
  return true;
}

void MpiStuck::finish_sends() {
  sent_.remove_if([](Sent& sent) {
    int done = 0;
    return MPI_Test(&sent.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
  });
}

void MpiStuck::tell() {
  if (tells_) return;
  tells_ = true;
  std::string text;
  for (const auto& [thread, wait] : waits_) text += (text.empty() ? "" : ", and ") + wait.text;
  send(0, kStateTag, number_text(++told_) + text);
}

void MpiStuck::take_back() {
  if (!tells_) return;
  tells_ = false;
  send(0, kStateTag, "");
}

std::string MpiStuck::look(Clock::duration waited, const std::function<std::string()>& describe) {
  if (waited < kStuckAfter) return "";
  const std::lock_guard lock(mutex_);
  const auto mine = waits_.find(std::this_thread::get_id());
  some_wait_ = true;
  Wait& wait = mine != waits_.end() ? mine->second : (waits_[std::this_thread::get_id()] = {describe(), ""});
  if (static_cast<int>(waits_.size()) >= calling_threads()) {
    tell();
  } else {
    take_back();
  }
  serve_locked();
  finish_sends();
  std::string verdict;
  for (int from = 0; receive(0, kVerdictTag, verdict, &from);) {
    // The note of an earlier wait means nothing any more.
    if (!tells_ || verdict.compare(0, sizeof(told_), number_text(told_)) != 0) continue;
    for (auto& [thread, one] : waits_) one.verdict = verdict.substr(sizeof(told_));
  }
  if (!wait.verdict.empty()) {
    verdict_ = wait.verdict;
    was_stuck_ = true;
  }
  return wait.verdict;
}

std::string MpiStuck::take_verdict() {
  if (!was_stuck_) return "";
  const std::lock_guard lock(mutex_);
  was_stuck_ = false;
  return std::exchange(verdict_, {});
}

void MpiStuck::go_on() {
  if (!some_wait_) return;
  const UsesMpi mpi;
  const std::lock_guard lock(mutex_);
  if (waits_.erase(std::this_thread::get_id()) > 0 && mpi.may()) take_back();
  some_wait_ = !waits_.empty();
}

void MpiStuck::serve() {
  const std::lock_guard lock(mutex_);
  serve_locked();
}

void MpiStuck::serve_locked() {
  if (rank_ != 0) return;
  std::string state;
  for (int from = 0; receive(MPI_ANY_SOURCE, kStateTag, state, &from);) {
    states_[from] = state;
    quiet_ = 0;
  }
  finish_sends();
  const Clock::time_point now = Clock::now();
  if (now - last_look_ < kProbeEvery) return;
  last_look_ = now;
  std::string text;
  for (int rank = 0; rank < size_; ++rank) {
    if (has_ended_(rank)) continue;
    if (states_[rank].empty()) {
      quiet_ = 0;
      return;
    }
    text += (text.empty() ? "" : "\n        ") + std::string("rank ") + std::to_string(rank) + ": " +
            states_[rank].substr(sizeof(told_));
  }
  if (text.empty() || ++quiet_ < kQuietLooks) return;
  quiet_ = 0;
  for (int rank = 0; rank < size_; ++rank) {
    if (!has_ended_(rank)) send(rank, kVerdictTag, states_[rank].substr(0, sizeof(told_)) + text);
  }
}

}  // namespace moonhalo
