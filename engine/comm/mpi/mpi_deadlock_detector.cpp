// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/mpi/mpi_deadlock_detector.h"

#include <cstring>
#include <utility>

#include "moonhalo/engine/comm/diagnostics/calling_threads.h"
#include "moonhalo/engine/comm/mpi/mpi_checked.h"

namespace moonhalo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kStateTag = 2, kReportTag = 3;
constexpr std::chrono::seconds kDeadlockAfter{1};
// Looks, not time: a job that was suspended receives what has been sent before it decides.
constexpr int kQuietPolls = 50;
constexpr std::chrono::milliseconds kProbeEvery{20};

std::string number_text(uint64_t number) { return std::string(reinterpret_cast<const char*>(&number), sizeof(number)); }

}  // namespace

MpiDeadlockDetector::MpiDeadlockDetector(MPI_Comm comm, std::function<bool(int)> has_ended)
    : comm_(comm), has_ended_(std::move(has_ended)) {
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
  states_.resize(size_);
}

void MpiDeadlockDetector::send(int peer, int tag, const std::string& text) {
  Sent& sent = sent_.emplace_back(Sent{MPI_REQUEST_NULL, text});
  MPI_Isend(sent.text.data(), static_cast<int>(sent.text.size()), MPI_BYTE, peer, tag, comm_, &sent.request);
}

bool MpiDeadlockDetector::receive(int source, int tag, std::string& text, int* from) {
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

void MpiDeadlockDetector::finish_sends() {
  sent_.remove_if([](Sent& sent) {
    int done = 0;
    return MPI_Test(&sent.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
  });
}

void MpiDeadlockDetector::send_wait() {
  if (wait_is_reported_) return;
  wait_is_reported_ = true;
  std::string text;
  for (const auto& [thread, wait] : waits_) text += (text.empty() ? "" : ", and ") + wait.text;
  send(0, kStateTag, number_text(++reports_sent_) + text);
}

void MpiDeadlockDetector::withdraw_wait() {
  if (!wait_is_reported_) return;
  wait_is_reported_ = false;
  send(0, kStateTag, "");
}

std::string MpiDeadlockDetector::poll(Clock::duration waited, const std::function<std::string()>& describe) {
  if (waited < kDeadlockAfter) return "";
  const std::lock_guard lock(mutex_);
  const auto mine = waits_.find(std::this_thread::get_id());
  some_wait_ = true;
  Wait& wait = mine != waits_.end() ? mine->second : (waits_[std::this_thread::get_id()] = {describe(), ""});
  if (static_cast<int>(waits_.size()) >= calling_threads()) {
    send_wait();
  } else {
    withdraw_wait();
  }
  serve_locked();
  finish_sends();
  std::string report;
  for (int from = 0; receive(0, kReportTag, report, &from);) {
    // The note of an earlier wait means nothing any more.
    if (!wait_is_reported_ || report.compare(0, sizeof(reports_sent_), number_text(reports_sent_)) != 0) continue;
    for (auto& [thread, one] : waits_) one.report = report.substr(sizeof(reports_sent_));
  }
  if (!wait.report.empty()) {
    deadlock_report_ = wait.report;
    was_deadlocked_ = true;
  }
  return wait.report;
}

std::string MpiDeadlockDetector::take_report() {
  if (!was_deadlocked_) return "";
  const std::lock_guard lock(mutex_);
  was_deadlocked_ = false;
  return std::exchange(deadlock_report_, {});
}

void MpiDeadlockDetector::go_on() {
  if (!some_wait_) return;
  const UsesMpi mpi;
  const std::lock_guard lock(mutex_);
  if (waits_.erase(std::this_thread::get_id()) > 0 && mpi.may()) withdraw_wait();
  some_wait_ = !waits_.empty();
}

void MpiDeadlockDetector::serve() {
  const std::lock_guard lock(mutex_);
  serve_locked();
}

void MpiDeadlockDetector::serve_locked() {
  if (rank_ != 0) return;
  std::string state;
  for (int from = 0; receive(MPI_ANY_SOURCE, kStateTag, state, &from);) {
    states_[from] = state;
    quiet_ = 0;
  }
  finish_sends();
  const Clock::time_point now = Clock::now();
  if (now - last_poll_time_ < kProbeEvery) return;
  last_poll_time_ = now;
  std::string text;
  for (int rank = 0; rank < size_; ++rank) {
    if (has_ended_(rank)) continue;
    if (states_[rank].empty()) {
      quiet_ = 0;
      return;
    }
    text += (text.empty() ? "" : "\n        ") + std::string("rank ") + std::to_string(rank) + ": " +
            states_[rank].substr(sizeof(reports_sent_));
  }
  if (text.empty() || ++quiet_ < kQuietPolls) return;
  quiet_ = 0;
  for (int rank = 0; rank < size_; ++rank) {
    if (!has_ended_(rank)) send(rank, kReportTag, states_[rank].substr(0, sizeof(reports_sent_)) + text);
  }
}

}  // namespace moonhalo
