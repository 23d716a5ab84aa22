// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/comm/diagnostics/deadlock_detector.h"
#include "moonhalo/engine/comm/time_limit.h"

namespace moonhalo {

class Communicator;

/// Lets one rank thread sleep until another changes something that it waits for. Spins first, if there is a core for
/// every rank, since a message between running threads takes less time than falling asleep.
class Parker {
 public:
  /// Called after the change. Costs one load while the owner is awake.
  void wake();
  /// Returns when `ready()` is true, or at the deadline (then false). `ready` reads sequentially consistent atomics.
  bool wait(c10::function_ref<bool()> ready, std::chrono::steady_clock::time_point deadline, bool spin);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> sleepers_{0};
};

/// The state that all groups split from one set of rank threads share.
struct ThreadWorld {
  explicit ThreadWorld(int ranks);

  void abort(const std::string& reason);
  void end_rank(int rank);
  /// While away a rank counts as ended: no rank waits for it.
  void set_inactive(int rank, bool away);
  std::string abort_reason();

  const int size;
  /// True if there are cores enough for every rank to spin.
  const bool spin;
  std::vector<Parker> parkers;
  std::vector<std::atomic<bool>> ended;
  std::atomic<int> ended_count{0};
  std::atomic<bool> aborted{false};
  DeadlockDetector deadlock_detector;
  std::vector<GroupList> groups;  // by rank

 private:
  std::mutex mutex_;
  std::string reason_;
};

/// One message on its way from a sender's buffer to a receiver's. The side that claims it first, the receiver by
/// copying or the sender by withdrawing (after an error), decides.
struct Envelope {
  enum State { kPosted, kClaimed, kDelivered, kWithdrawn };
  c10::SmallVector<at::Tensor, 1> tensors;
  CallMark mark;
  uint64_t call = 0;
  std::atomic<int> state{kPosted};
};

/// The messages from one rank to another, numbered in the order of posting.
class Channel {
 public:
  void push(std::shared_ptr<Envelope> envelope);
  /// The message with this number; null if it was not posted yet. Each is taken once.
  std::shared_ptr<Envelope> take(uint64_t number);
  uint64_t posted() const { return posted_.load(); }
  /// Messages posted and not yet taken.
  size_t waiting();

 private:
  std::mutex mutex_;
  std::deque<std::shared_ptr<Envelope>> envelopes_;
  uint64_t first_ = 0;
  std::atomic<uint64_t> posted_{0};
};

class ThreadGroup;

/// A rank's notes about the collective call that it is in, for the others to read: sizes to be compared, and where
/// its data is (small data is copied in, so that no rank needs to wait until all have read it).
struct alignas(64) CollectiveSlot {
  static constexpr size_t kInlineBytes = 2048;
  uint64_t call = 0;
  int kind = 0;
  int op = 0;
  int dtype = 0;
  int root = 0;
  CallMark mark;
  int64_t elements = 0;
  std::vector<int64_t> counts;
  /// The counts of all_to_all, which differ from rank to rank.
  std::vector<int64_t> send_counts;
  std::vector<int64_t> receive_counts;
  const void* in = nullptr;
  const at::Tensor* tensor = nullptr;  // what `in` is the memory of; may be strided
  int color = 0;
  int key = 0;
  std::shared_ptr<ThreadGroup> made;
  alignas(64) unsigned char bytes[kInlineBytes];
};

/// The barrier and the slots of one group of rank threads.
///
/// A collective call is one or two phases: `arrive` (each has posted its slot) and, where others' buffers were read
/// or written in place, `depart` (no rank reads mine any more). `arrive` throws on timeout, abort, or an ended
/// rank; then the group is broken for good, and no late rank can still arrive. `depart` never throws: every rank is
/// known to be in the same copy. Slots alternate between two sets: a set is reused two phases later, after all
/// ranks have left it.
class ThreadGroup {
 public:
  /// Describes the call that the rank is in; asked for when it has waited for long or calls differ.
  using Describe = c10::function_ref<std::string()>;

  ThreadGroup(std::shared_ptr<ThreadWorld> world, std::vector<int> world_ranks);

  int size() const { return static_cast<int>(world_ranks_.size()); }
  ThreadWorld& world() { return *world_; }
  const std::shared_ptr<ThreadWorld>& shared_world() const { return world_; }
  int world_rank(int rank) const { return world_ranks_[rank]; }
  CollectiveSlot& slot(int rank, uint64_t phase) { return slots_[(phase & 1) * world_ranks_.size() + rank]; }
  Channel& channel(int from, int to) { return channels_[static_cast<size_t>(from) * world_ranks_.size() + to]; }

  /// Says that `rank` begins its call number `call`, a verb of this `kind`, for finding ranks in different verbs.
  void announce(int rank, uint64_t call, int kind);
  void arrive(int rank, uint64_t phase, const char* verb, std::chrono::milliseconds timeout, Describe describe);
  void depart(int rank, uint64_t phase);

  /// Waits for `ready`, which may need rank `peer` (or any rank in `peers`); throws CommError as `arrive` does.
  void wait_for_peers(int rank, const char* verb, std::chrono::milliseconds timeout, c10::function_ref<bool()> ready,
                      const std::vector<int>& peers, Describe describe);
  void wake(int rank) { world_->parkers[world_ranks_[rank]].wake(); }
  /// Waits for something that is certain to come soon.
  void wait_without_timeout(int rank, c10::function_ref<bool()> ready);

  /// Makes every present and later call in this group throw: ValueError where the ranks made calls that do not fit
  /// together (`mismatch`), else CommError. The first reason is kept.
  void fail(const std::string& reason, bool mismatch);
  /// Returns what all ranks of a phase in which calls differ say of theirs. Every one of them must call it; once.
  std::vector<std::string> exchange_descriptions(int rank, Describe describe);
  /// Tells what this rank is in, and gives what `other` said that it is in, if it is still in call number `call`, and
  /// waits or has found a difference too; else "".
  std::string peer_description(int rank, int other, uint64_t call, Describe describe);

  /// Throws if the group is broken.
  void check(int rank, const char* verb);
  /// See CommunicatorBackend.
  void note_device_call(int rank, uint64_t number) { device_calls_[rank] = number; }
  std::string peer_failure(uint64_t device_call);
  bool broken() const { return (arrivals_.load() & kBroken) != 0; }

 private:
  static constexpr uint64_t kBroken = uint64_t{1} << 63;
  bool has_arrived(uint64_t target) const { return (arrivals_.load() & ~kBroken) >= target; }
  void wake_all();
  void keep_reason(const std::string& reason, bool mismatch);
  void publish_description(int rank, Describe describe);
  std::string wait_long(int rank, std::chrono::milliseconds timeout, c10::function_ref<bool()> ready,
                        Describe describe);
  std::string timeout_message(int rank, const char* verb, std::chrono::milliseconds timeout,
                              const std::vector<int>& missing, Describe describe);
  std::string different_verbs(int rank, Describe describe);
  [[noreturn]] void throw_lost(int rank, const char* verb);

  std::shared_ptr<ThreadWorld> world_;
  std::vector<int> world_ranks_;
  std::vector<CollectiveSlot> slots_;
  std::vector<Channel> channels_;
  /// call number * 16 + kind
  std::vector<std::atomic<uint64_t>> announced_;
  std::vector<std::atomic<uint64_t>> phases_;
  std::vector<std::atomic<uint64_t>> device_calls_;
  /// Ranks that have entered a phase, over all phases so far; the top bit says broken.
  alignas(64) std::atomic<uint64_t> arrivals_{0};
  std::mutex reason_mutex_;
  std::string reason_;
  bool mismatch_ = false;
  /// By rank: what it said of its call, and that call's number.
  struct Description {
    uint64_t call = 0;
    std::string text;
  };
  std::vector<Description> descriptions_;
  std::atomic<int> publishing_{0};
};

/// Returns the communicator of rank `rank` of the group `hub`.
std::shared_ptr<Communicator> make_threads_communicator(std::shared_ptr<ThreadGroup> hub, int rank);

}  // namespace moonhalo
