// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/threads/thread_group.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <sched.h>

#include <algorithm>
#include <sstream>

#include "moonhalo/engine/base/usable_cores.h"
#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/interpreter_lock.h"

namespace moonhalo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kSpinTime{60};
constexpr std::chrono::microseconds kYieldAfter{5};

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

const char* verb_name(uint64_t kind) {
  CollectiveCall call;
  call.kind = static_cast<int>(kind);
  return call.verb();
}

// After so long a rank that waits says what it is in; others wait this long for its description.
constexpr std::chrono::milliseconds kPublishAfter{50}, kPublishWithin{500}, kWakeInterval{200};

}  // namespace

void Parker::wake() {
  if (sleepers_.load() == 0) return;
  // Taking the lock means: the sleeper is either before its check or inside its wait, never between.
  { std::lock_guard<std::mutex> lock(mutex_); }
  changed_.notify_all();
}

bool Parker::wait(c10::function_ref<bool()> ready, Clock::time_point deadline, bool spin) {
  if (ready()) return true;
  const InterpreterReleased interpreter_released;
  if (spin) {
    const Clock::time_point begin = Clock::now();
    for (Clock::duration time{}; time < kSpinTime; time = Clock::now() - begin) {
      for (int i = 0; i < 32; ++i) {
        if (ready()) return true;
        pause_briefly();
      }
      // A rank that is waited for may have lost its core to this rank.
      if (time > kYieldAfter) sched_yield();
    }
  }
  std::unique_lock<std::mutex> lock(mutex_);
  ++sleepers_;
  const bool done = changed_.wait_until(lock, deadline, ready);
  --sleepers_;
  return done;
}

ThreadWorld::ThreadWorld(int ranks)
    : size(ranks),
      spin(ranks <= usable_core_count()),
      parkers(ranks),
      ended(ranks),
      deadlock_detector(ranks),
      groups(ranks) {}

void ThreadWorld::abort(const std::string& reason) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted.load()) return;
    reason_ = reason;
    aborted.store(true);
  }
  for (Parker& parker : parkers) parker.wake();
}

void ThreadWorld::end_rank(int rank) {
  ended[rank].store(true);
  ++ended_count;
  for (Parker& parker : parkers) parker.wake();
}

void ThreadWorld::set_inactive(int rank, bool away) {
  if (ended[rank].exchange(away) == away) return;
  ended_count += away ? 1 : -1;
  for (Parker& parker : parkers) parker.wake();
}

std::string ThreadWorld::abort_reason() {
  std::lock_guard<std::mutex> lock(mutex_);
  return reason_;
}

void Channel::push(std::shared_ptr<Envelope> envelope) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    envelopes_.push_back(std::move(envelope));
  }
  // Published only now, or the receiver would run into the lock and fall asleep there.
  ++posted_;
}

std::shared_ptr<Envelope> Channel::take(uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (number < first_ || number - first_ >= envelopes_.size()) return nullptr;
  std::shared_ptr<Envelope> envelope = std::move(envelopes_[number - first_]);
  envelopes_[number - first_] = nullptr;
  while (!envelopes_.empty() && envelopes_.front() == nullptr) {
    envelopes_.pop_front();
    ++first_;
  }
  return envelope;
}

size_t Channel::waiting() {
  std::lock_guard<std::mutex> lock(mutex_);
  return envelopes_.size();
}

ThreadGroup::ThreadGroup(std::shared_ptr<ThreadWorld> world, std::vector<int> world_ranks)
    : world_(std::move(world)),
      world_ranks_(std::move(world_ranks)),
      slots_(2 * world_ranks_.size()),
      channels_(world_ranks_.size() * world_ranks_.size()),
      announced_(world_ranks_.size()),
      phases_(world_ranks_.size()),
      device_calls_(world_ranks_.size()),
      descriptions_(world_ranks_.size()) {}

void ThreadGroup::wake_all() {
  for (const int rank : world_ranks_) world_->parkers[rank].wake();
}

void ThreadGroup::announce(int rank, uint64_t call, int kind) {
  announced_[rank].store(call * 16 + static_cast<uint64_t>(kind));
}

void ThreadGroup::keep_reason(const std::string& reason, bool mismatch) {
  std::lock_guard<std::mutex> lock(reason_mutex_);
  if (!reason_.empty()) return;
  reason_ = reason;
  mismatch_ = mismatch;
}

void ThreadGroup::publish_description(int rank, Describe describe) {
  std::string text = describe();
  {
    std::lock_guard<std::mutex> lock(reason_mutex_);
    descriptions_[rank] = {announced_[rank].load() / 16, std::move(text)};
  }
  wake_all();
}

std::vector<std::string> ThreadGroup::exchange_descriptions(int rank, Describe describe) {
  publish_description(rank, describe);
  ++publishing_;
  wake_all();
  wait_without_timeout(rank, [&] { return publishing_.load() >= size(); });
  std::vector<std::string> texts;
  std::lock_guard<std::mutex> lock(reason_mutex_);
  for (const Description& peer_description : descriptions_) texts.push_back(peer_description.text);
  return texts;
}

std::string ThreadGroup::peer_description(int rank, int other, uint64_t call, Describe describe) {
  publish_description(rank, describe);
  std::string text;
  const auto heard = [&] {
    std::lock_guard<std::mutex> lock(reason_mutex_);
    if (descriptions_[other].call == call) text = descriptions_[other].text;
    return !text.empty() || world_->aborted.load();
  };
  world_->parkers[world_ranks_[rank]].wait(heard, Clock::now() + kPublishWithin, false);
  return text;
}

// Returns why it is given up, "" unless all ranks wait for each other.
std::string ThreadGroup::wait_long(int rank, std::chrono::milliseconds timeout, c10::function_ref<bool()> ready,
                                   Describe describe) {
  const int me = world_ranks_[rank];
  Parker& parker = world_->parkers[me];
  WaitingTime time;
  if (parker.wait(ready, Clock::now() + std::min(timeout, kPublishAfter), false)) return "";
  publish_description(rank, describe);
  world_->deadlock_detector.enter(me, describe());
  std::string report;
  for (bool done = false; !done && report.empty();) {
    const uint64_t generation = world_->deadlock_detector.generation();
    time.poll();
    done = parker.wait(ready, Clock::now() + std::min<Clock::duration>(time.left(timeout), kWakeInterval), false);
    time.poll();
    done |= time.left(timeout) <= Clock::duration::zero();
    if (!done) report = world_->deadlock_detector.poll(me, generation, {world_->ended.begin(), world_->ended.end()});
  }
  // Another rank may have been notified first, and have ended.
  if (report.empty()) report = world_->deadlock_detector.report(me);
  world_->deadlock_detector.leave(me);
  if (report.empty()) return "";
  return std::string(verb_name(announced_[rank].load() % 16)) +
         ": all ranks wait for each other, in different groups or calls\n  have  " + report + divergence_remedy();
}

void ThreadGroup::fail(const std::string& reason, bool mismatch) {
  keep_reason(reason, mismatch);
  arrivals_.fetch_or(kBroken);
  wake_all();
}

std::string ThreadGroup::peer_failure(uint64_t device_call) {
  if (world_->aborted.load()) return world_->abort_reason();
  for (int rank = 0; rank < size(); ++rank) {
    if (world_->ended[world_ranks_[rank]].load() && device_calls_[rank] < device_call)
      return "rank " + std::to_string(rank) + " ended without joining";
  }
  return "";
}

void ThreadGroup::throw_lost(int rank, const char* verb) {
  std::string reason = world_->abort_reason();
  if (reason.empty()) {
    std::lock_guard<std::mutex> lock(reason_mutex_);
    TORCH_CHECK_VALUE(!mismatch_, reason_);
    reason = reason_;
  }
  std::ostringstream text;
  text << verb << ": rank " << rank << " of " << size() << " stops: " << reason;
  throw CommError(text.str());
}

void ThreadGroup::check(int rank, const char* verb) {
  if (world_->aborted.load() || broken()) throw_lost(rank, verb);
}

// Two ranks that are in the same call by number, one of them in an exchange and the other not, would wait for each
// other for ever. (All other collectives have a barrier, and are compared then.)
std::string ThreadGroup::different_verbs(int rank, Describe describe) {
  const uint64_t mine = announced_[rank].load();
  for (int other = 0; other < size(); ++other) {
    const uint64_t theirs = announced_[other].load();
    if (mine % 16 != CommStats::kExchange && theirs % 16 != CommStats::kExchange) continue;
    if (theirs / 16 == mine / 16 && theirs % 16 != mine % 16) {
      std::ostringstream text;
      text << verb_name(mine % 16) << ": call " << mine / 16 << " of this group is " << verb_name(mine % 16)
           << " on rank " << rank << " and " << verb_name(theirs % 16) << " on rank " << other;
      const std::string heard = peer_description(rank, other, theirs / 16, describe);
      text << "\n  have  rank " << rank << ": " << describe() << "\n        rank " << other << ": "
           << (heard.empty() ? CollectiveCall{.kind = static_cast<int>(theirs % 16), .number = theirs / 16}.text()
                             : heard)
           << divergence_remedy();
      return text.str();
    }
  }
  return "";
}

std::string ThreadGroup::timeout_message(int rank, const char* verb, std::chrono::milliseconds timeout,
                                         const std::vector<int>& missing, Describe describe) {
  std::ostringstream text;
  std::vector<int> gone;
  for (const int other : missing) {
    if (world_->ended[world_ranks_[other]].load()) gone.push_back(other);
  }
  if (!gone.empty()) {
    text << (gone.size() > 1 ? "ranks " : "rank ") << c10::Join(", ", gone) << " ended without joining " << verb
         << " (call " << announced_[rank].load() / 16 << " of this group)\n  have  rank " << rank << ": " << describe()
         << divergence_remedy();
    return text.str();
  }
  text << verb << " timed out after " << seconds_text(timeout) << " on rank " << rank
       << (missing.size() > 1 ? ": ranks " : ": rank ") << c10::Join(", ", missing) << " did not come\n  have  ";
  for (const int other : missing) {
    const uint64_t last = announced_[other].load();
    text << (other == missing.front() ? "" : "; ") << "rank " << other << " in ";
    if (last == 0) {
      text << "no call of this group yet";
    } else {
      text << "or after " << verb_name(last % 16) << " (call " << last / 16 << " of this group)";
    }
  }
  text << ", rank " << rank << " in call " << announced_[rank].load() / 16
       << "\n  fix   look for ranks that take another branch; MOONHALO_TIMEOUT_S sets the time";
  return text.str();
}

void ThreadGroup::arrive(int rank, uint64_t phase, const char* verb, std::chrono::milliseconds timeout,
                         Describe describe) {
  const uint64_t target = (phase + 1) * world_ranks_.size();
  phases_[rank].store(phase + 1);
  uint64_t before = arrivals_.load();
  do {
    if ((before & kBroken) != 0) throw_lost(rank, verb);
  } while (!arrivals_.compare_exchange_weak(before, before + 1));
  if (before + 1 == target) {
    wake_all();
    return;
  }

  const auto missing = [&] {
    std::vector<int> ranks;
    for (int other = 0; other < size(); ++other) {
      if (phases_[other].load() < phase + 1) ranks.push_back(other);
    }
    return ranks;
  };
  std::string reason;
  const auto gone = [&] {
    if (world_->ended_count.load() == 0) return false;
    for (int other = 0; other < size(); ++other) {
      // In this order: a rank may join and then end.
      if (world_->ended[world_ranks_[other]].load() && phases_[other].load() < phase + 1) return true;
    }
    return false;
  };
  const auto ready = [&] { return has_arrived(target) || broken() || world_->aborted.load() || gone(); };
  // Looked for once, before sleeping: of two ranks in different verbs, the later one sees the other.
  if (!world_->parkers[world_ranks_[rank]].wait(ready, Clock::now(), world_->spin)) {
    reason = different_verbs(rank, describe);
    if (reason.empty()) reason = wait_long(rank, timeout, ready, describe);
  }
  if (has_arrived(target)) return;
  const bool mismatch = !reason.empty();
  if (reason.empty() && !broken() && !world_->aborted.load())
    reason = timeout_message(rank, verb, timeout, missing(), describe);

  // Give up only if the others have not come in the meantime; afterwards no rank can.
  keep_reason(reason, mismatch);
  uint64_t now = arrivals_.load();
  while ((now & ~kBroken) < target) {
    if (arrivals_.compare_exchange_weak(now, now | kBroken)) {
      wake_all();
      throw_lost(rank, verb);
    }
  }
}

void ThreadGroup::depart(int rank, uint64_t phase) {
  const uint64_t target = (phase + 1) * world_ranks_.size();
  phases_[rank].store(phase + 1);
  if ((arrivals_.fetch_add(1) & ~kBroken) + 1 == target) {
    wake_all();
    return;
  }
  wait_without_timeout(rank, [&] { return has_arrived(target); });
}

void ThreadGroup::wait_without_timeout(int rank, c10::function_ref<bool()> ready) {
  Parker& parker = world_->parkers[world_ranks_[rank]];
  bool spin = world_->spin;
  while (!parker.wait(ready, Clock::now() + std::chrono::hours(1), spin)) spin = false;
}

void ThreadGroup::wait_for_peers(int rank, const char* verb, std::chrono::milliseconds timeout,
                                 c10::function_ref<bool()> ready, const std::vector<int>& peers, Describe describe) {
  const auto gone = [&] {
    return world_->ended_count.load() > 0 &&
           std::any_of(peers.begin(), peers.end(), [&](int r) { return world_->ended[world_ranks_[r]].load(); });
  };
  // A peer may deliver and then end, so the end is looked at first.
  const auto stop = [&] {
    const bool ended = gone();
    return ready() || ended || broken() || world_->aborted.load();
  };
  Parker& parker = world_->parkers[world_ranks_[rank]];
  std::string reason;
  if (!parker.wait(stop, Clock::now(), world_->spin)) {
    reason = different_verbs(rank, describe);
    if (reason.empty()) reason = wait_long(rank, timeout, stop, describe);
  }
  if (ready()) return;
  const bool mismatch = !reason.empty();
  if (reason.empty() && !broken() && !world_->aborted.load())
    reason = timeout_message(rank, verb, timeout, peers, describe);
  fail(reason, mismatch);
  throw_lost(rank, verb);
}

}  // namespace moonhalo
