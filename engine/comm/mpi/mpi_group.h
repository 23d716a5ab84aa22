// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/comm/mpi/mpi_exit_notifier.h"
#include "moonhalo/engine/comm/time_limit.h"

namespace moonhalo {

/// A communicator that Moonhalo made. The caller may finalise MPI before the last of us is gone.
struct OwnedComm {
  explicit OwnedComm(MPI_Comm comm);
  ~OwnedComm();
  OwnedComm(const OwnedComm&) = delete;
  MPI_Comm handle;
};
using CommHandle = std::shared_ptr<OwnedComm>;

/// The state that all groups split from one communicator share.
struct MpiWorld {
  CommHandle comm;
  std::shared_ptr<MpiExitNotifier> exit_notifier;
  bool check_calls = true;
  uint64_t absence = 1;             ///< changes when suspended ranks resume
  std::vector<uint64_t> group_ids;  ///< of all groups of this rank, ever
  GroupList groups;
};

/// Data that goes from one rank to another in a call, as both ends must see it: combined into sums that agree if all
/// messages do.
class MpiTraffic {
 public:
  explicit MpiTraffic(int size) : sent_(size, 0), received_(size, 0), next_sent_(size, 0), next_received_(size, 0) {}
  void send(int from, int to, uint64_t bytes, at::ScalarType dtype);
  void receive(int from, int to, uint64_t bytes, at::ScalarType dtype);

 private:
  friend class MpiGroup;
  std::vector<uint64_t> sent_, received_;  // by peer
  std::vector<uint64_t> next_sent_, next_received_;
};

/// One group of ranks, and the comparing of their calls. Each call starts a non-blocking reduction of 24 bytes:
/// smallest and largest tag, and the difference of what is sent and received. All ranks start it whatever verb they
/// call, so that calls that differ are found where they begin; only then do ranks send each other descriptions.
class MpiGroup {
 public:
  MpiGroup(CommHandle comm, std::shared_ptr<MpiWorld> world, uint64_t id);
  ~MpiGroup();
  MpiGroup(const MpiGroup&) = delete;

  MPI_Comm handle() const { return comm_->handle; }
  MpiWorld& world() { return *world_; }
  const std::shared_ptr<MpiWorld>& shared_world() const { return world_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  /// The id that the next group split from this one with `color` has, on all its ranks.
  uint64_t next_id(int color) {
    return combine_fingerprint(combine_fingerprint(id_, ++splits_), static_cast<uint64_t>(color));
  }

  /// Numbers the call. ValueError when the ranks of this group have diverged before. `may_differ`: that calls
  /// differ is not an error, but found_different() says so.
  void begin(CollectiveCall call, const MpiTraffic& traffic, bool may_differ = false);
  void begin(const CollectiveCall& call) { begin(call, MpiTraffic(0)); }
  /// True if the last call that was allowed to differ did so.
  bool found_different() const { return found_different_; }
  /// MPI's tag for messages of the call begun last. Where calls are compared it is another one for another call,
  /// so that data of different calls is not matched: MPI may write beyond a receive that is too short.
  int message_tag() const { return message_tag_; }
  /// Number of the call begun last.
  uint64_t number() const { return calls_; }
  /// True if all ranks are known to make the calls up to `number`. ValueError, on all ranks, when they do not.
  bool settled(uint64_t number);
  bool broken() const { return !broken_.empty(); }
  /// CommError when a rank has ended that will never make call `number`.
  void check_left(uint64_t number, const char* verb);
  /// See CommunicatorBackend. A rank that has failed anywhere, or that never comes to call `number` of the devices; -1
  /// if there is none.
  void note_device_call(uint64_t number);
  int failed_rank(uint64_t device_call) {
    return world_->exit_notifier->failed_rank(device_id_, device_call, world_->absence);
  }
  /// A rank of this group that has ended or is suspended; -1 as far as is known.
  int suspended_rank() { return world_->exit_notifier->suspended_rank(id_, world_->absence); }
  /// ValueError when this rank, which has waited for the others to begin call `number` for so long, and all others wait
  /// for each other.
  void check_deadlock(uint64_t number, std::chrono::steady_clock::duration waited);

 private:
  struct Words {
    uint64_t low, high, balance;
  };
  struct Check {
    Check(const CollectiveCall& given, const MpiTraffic& traffic);
    CollectiveCall call;
    std::vector<int64_t> counts, send_counts, receive_counts;  // the call's, which may outlive its caller's
    MpiTraffic traffic;
    Words mine, all{};
    bool may_differ = false;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  static void reduce(void* in, void* inout, int* count, MPI_Datatype*);
  [[noreturn]] void refuse(const Check& check);
  std::string report(const Check& check, const std::string& mine);
  std::string ask_for_report(const Check& check, const std::string& mine);
  const CollectiveCall* call(uint64_t number) const;
  std::string judge(const Check& check, const std::vector<std::string>& descriptions) const;

  CommHandle comm_;
  std::shared_ptr<MpiWorld> world_;
  uint64_t id_;
  uint64_t device_id_;  // of the counter of calls that devices make among themselves
  uint64_t& calls_;
  uint64_t splits_ = 0;
  static constexpr int kMessageTag = 2, kFirstMessageTag = 64, kMessageTags = 32000;  // MPI promises tags up to 32767
  int message_tag_ = kMessageTag;
  int rank_ = 0, size_ = 1;
  std::deque<std::unique_ptr<Check>> checks_;
  std::string broken_;
  bool found_different_ = false;
};
using MpiGroupPtr = std::shared_ptr<MpiGroup>;

}  // namespace moonhalo
