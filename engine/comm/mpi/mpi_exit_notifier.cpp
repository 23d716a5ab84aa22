// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/mpi/mpi_exit_notifier.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <thread>

#include "moonhalo/engine/comm/diagnostics/process_exit.h"
#include "moonhalo/engine/comm/mpi/mpi_checked.h"
#include "moonhalo/engine/comm/time_limit.h"

namespace moonhalo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kNoteTag = 1;
// So long a rank that has failed waits for the others to end as well.
constexpr std::chrono::seconds kGrace{2};

std::atomic<int> exit_status{0};
std::atomic<bool> finalises_for_itself{
    false};  // Moonhalo does, at exit; else it is the program's MPI, and its own wait

std::mutex& registry_mutex() {
  static std::mutex mutex;
  return mutex;
}

std::vector<std::shared_ptr<MpiExitNotifier>>& registry() {
  static auto* all =
      new std::vector<std::shared_ptr<MpiExitNotifier>>;  // MPI may be finalised after static objects are gone
  return *all;
}

}  // namespace

MpiExitNotifier::MpiExitNotifier(MPI_Comm comm) : comm_(comm), limit_(default_time_limit()) {
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
  deadlock_detector_ = std::make_unique<MpiDeadlockDetector>(comm_, [this](int rank) {
    const std::lock_guard lock(mutex_);
    return ended_.count(rank) > 0;
  });
}

std::shared_ptr<MpiExitNotifier> MpiExitNotifier::of(MPI_Comm comm) {
  const std::lock_guard lock(registry_mutex());
  for (const auto& known : registry()) {
    int result = MPI_UNEQUAL;
    MPI_Comm_compare(known->comm_, comm, &result);
    if (result == MPI_CONGRUENT || result == MPI_IDENT) return known;
  }
  if (registry().empty()) {
    // MPI_Finalize first deletes what is attached to MPI_COMM_SELF, while everything still works.
    int key = MPI_KEYVAL_INVALID;
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &MpiExitNotifier::end_all, &key, nullptr);
    MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr);
  }
  registry().push_back(std::shared_ptr<MpiExitNotifier>(new MpiExitNotifier(duplicate(comm, "communicator"))));
  return registry().back();
}

int MpiExitNotifier::end_all(MPI_Comm, int, void*, void*) {
  UsesMpi::end();
  const std::lock_guard lock(registry_mutex());
  for (const auto& one : registry()) one->end();
  WaitingTime time;
  for (;;) {
    bool done = true;
    for (const auto& one : registry()) done = one->all_ended() && done;
    if (done) return MPI_SUCCESS;
    const Clock::duration waited = time.poll();
    if (exit_status != 0 && waited > kGrace)
      stop_all_ranks("it ends with exit status " + std::to_string(exit_status) + ", and others go on without it",
                     exit_status);
    for (const auto& one : registry()) {
      if (time.left(one->limit_ * kStartTimeoutFactor) > Clock::duration::zero()) continue;
      if (!finalises_for_itself) return MPI_SUCCESS;  // whom the program's MPI_Finalize waits for is its own affair
      stop_all_ranks("it has ended, and others did not within " + seconds_text(one->limit_ * kStartTimeoutFactor) +
                         " (" + std::to_string(kStartTimeoutFactor) +
                         " times what MOONHALO_TIMEOUT_S or --timeout gives)",
                     kRankLostStatus);
    }
    std::this_thread::sleep_for(std::min<Clock::duration>(waited / 20, std::chrono::milliseconds(5)));
  }
}

void MpiExitNotifier::stop_all_ranks(const std::string& message, int status) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::fprintf(stderr, "moonhalo: rank %d stops all ranks: %s\n", rank, message.c_str());
  std::fflush(nullptr);
  MPI_Abort(MPI_COMM_WORLD, status);
  std::_Exit(status);
}

void MpiExitNotifier::set_exit_status(int status) {
  exit_status = status;
  finalises_for_itself = true;
  const std::lock_guard lock(registry_mutex());
  if (status != 0 && registry().empty())
    stop_all_ranks("it ends with exit status " + std::to_string(status) + " before it could join them", status);
}

void MpiExitNotifier::end() {
  const std::lock_guard lock(mutex_);
  ended_[rank_] = {exit_status, calls_};
  pass_on(note(/*absence=*/0, calls_));
}

std::vector<uint64_t> MpiExitNotifier::note(uint64_t absence, const Calls& calls) const {
  std::vector<uint64_t> words{static_cast<uint64_t>(rank_), static_cast<uint64_t>(exit_status), absence};
  for (const auto& [group, count] : calls) {
    words.push_back(group);
    words.push_back(count);
  }
  return words;
}

void MpiExitNotifier::suspend(uint64_t absence, const std::vector<uint64_t>& groups) {
  const UsesMpi mpi;
  if (!mpi.may()) return;  // no rank can be notified, and none waits
  const std::lock_guard lock(mutex_);
  Calls calls;
  for (const uint64_t group : groups) calls[group] = calls_[group];
  pass_on(note(absence, calls));
}

bool MpiExitNotifier::all_ended() {
  poll();
  deadlock_detector_->serve();
  const std::lock_guard lock(mutex_);
  return static_cast<int>(ended_.size()) == size_ && sent_.empty();
}

// To this rank's children in the tree of the note's sender.
void MpiExitNotifier::pass_on(const std::vector<uint64_t>& note) {
  const int root = static_cast<int>(note[0]), place = (rank_ - root + size_) % size_;
  for (int step = 1; step < size_ - place; step *= 2) {
    if (step <= place) continue;
    Sent& sent = sent_.emplace_back();
    sent.note = std::make_unique<std::vector<uint64_t>>(note);
    MPI_Isend(sent.note->data(), static_cast<int>(note.size()), MPI_UINT64_T, (root + place + step) % size_, kNoteTag,
              comm_, &sent.request);
  }
}

void MpiExitNotifier::poll() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;
  for (;;) {
    int come = 0;
    MPI_Message message;
    MPI_Status status;
    if (MPI_Improbe(MPI_ANY_SOURCE, kNoteTag, comm_, &come, &message, &status) != MPI_SUCCESS || come == 0) break;
    int words = 0;
    MPI_Get_count(&status, MPI_UINT64_T, &words);
    std::vector<uint64_t> note(words);
    MPI_Mrecv(note.data(), words, MPI_UINT64_T, &message, MPI_STATUS_IGNORE);
    const auto rank = static_cast<int>(note[0]);
    if (note[2] == 0) ended_[rank].status = static_cast<int>(note[1]);
    Calls& calls = note[2] == 0 ? ended_[rank].calls : suspended_[note[2]][rank];
    for (size_t i = 3; i + 1 < note.size(); i += 2) calls[note[i]] = note[i + 1];
    pass_on(note);
  }
  const auto finished = [](Sent& sent) {
    int done = 0;
    return MPI_Test(&sent.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
  };
  sent_.erase(std::remove_if(sent_.begin(), sent_.end(), finished), sent_.end());
}

int MpiExitNotifier::failed_rank(uint64_t group, uint64_t call, uint64_t absence) {
  const UsesMpi mpi;
  if (!mpi.may()) return -1;
  poll();
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [rank, ended] : ended_) {
      if (ended.status != 0) return rank;
    }
    const auto suspended_rank = suspended_.find(absence);
    if (suspended_rank != suspended_.end() && !suspended_rank->second.empty())
      return suspended_rank->second.begin()->first;
  }
  return exited_rank(group, call, absence);
}

int MpiExitNotifier::exited_rank(uint64_t group, uint64_t call, uint64_t absence) const {
  const std::lock_guard lock(mutex_);
  const auto never_comes = [&](const Calls& calls) {
    const auto found = calls.find(group);
    return found != calls.end() && found->second < call;
  };
  for (const auto& [rank, ended] : ended_) {
    if (never_comes(ended.calls)) return rank;
  }
  const auto suspended_rank = suspended_.find(absence);
  if (suspended_rank == suspended_.end()) return -1;
  for (const auto& [rank, calls] : suspended_rank->second) {
    if (never_comes(calls)) return rank;
  }
  return -1;
}

int MpiExitNotifier::suspended_rank(uint64_t group, uint64_t absence) {
  poll();
  constexpr uint64_t kAnyCall = std::numeric_limits<uint64_t>::max();
  return exited_rank(group, kAnyCall, absence);
}

int MpiExitNotifier::status(int rank) const {
  const std::lock_guard lock(mutex_);
  const auto found = ended_.find(rank);
  return found == ended_.end() ? 0 : found->second.status;
}

int MpiExitNotifier::status() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [rank, ended] : ended_) {
    if (ended.status != 0) return ended.status;
  }
  return 0;
}

}  // namespace moonhalo
