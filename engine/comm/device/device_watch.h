// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Event.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/comm/time_limit.h"

namespace moonhalo {

/// Communicators of a device, as the watch sees them. Any thread.
class WatchedComm {
 public:
  virtual ~WatchedComm() = default;
  /// Says what its library has found wrong since; "" while all is well.
  virtual std::string problem() = 0;
  /// Ends what waits for other ranks on the device. May take for ever.
  virtual void abort() = 0;
};

/// Watches what one rank's device does together with other ranks, since no thread of the program may wait for it
/// where a verb looks. A thread of the process looks every few milliseconds: at errors of the communicators, at the
/// time limit of what is under way, and whether the host communicator has been notified of a rank that failed. Then
/// all ranks are notified, the communicators are aborted, and the next verb throws.
class DeviceWatch {
 public:
  /// An operation that was begun and is not known to have ended.
  struct Operation {
    std::weak_ptr<Communicator> group;  // of the host; whoever waits for the operation holds it
    CollectiveCall call;                // without counts
    std::optional<std::chrono::milliseconds> limit;
    std::shared_ptr<const c10::Event> ready, done;  // done: null until it is posted
    WaitingTime time;
    bool counts_time = false;
  };
  using OperationPtr = std::shared_ptr<Operation>;

  explicit DeviceWatch(CommunicatorPtr host);
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;

  void add(const std::shared_ptr<WatchedComm>& comm);
  /// Messages that the device waits for may be missing from now on; their time counts from when the device comes to
  /// `ready`. `group`: the host's communicator of the ranks whose devices make the call.
  OperationPtr begin(const CommunicatorPtr& group, const CollectiveCall& call, std::shared_ptr<const c10::Event> ready,
                     std::chrono::milliseconds limit);
  void posted(const OperationPtr& operation, std::shared_ptr<const c10::Event> done);
  void drop(const OperationPtr& operation);
  /// Returns when nothing is under way, or all has failed.
  void finish();

  bool failed() const { return failed_.load(); }
  /// CommError once something has failed.
  void check(const char* verb) const;
  /// The first reason is kept. Notifies the other ranks and aborts the communicators. Any thread.
  void fail(const std::string& reason);

  /// For the thread that looks. True while there is something to look at.
  bool poll();

 private:
  std::string reason_to_fail();
  std::string found_in_operations();
  bool aborts_under_way();

  CommunicatorPtr host_;
  mutable std::mutex mutex_;
  std::deque<OperationPtr> under_way_;
  std::vector<std::weak_ptr<WatchedComm>> comms_;
  std::string reason_;
  std::atomic<bool> failed_{false};
  std::optional<std::chrono::steady_clock::time_point> failure_seen_at_, aborting_since_;
  std::shared_ptr<std::atomic<int>> aborts_ = std::make_shared<std::atomic<int>>(0);
};

/// Called, with what happened, when an abort of a device's communicators has not ended after five seconds: ranks that
/// wait for that device never go on. A program may end itself then; without a hook nothing more is done.
void set_hung_device_hook(std::function<void(const std::string&)> hook);

/// Runs `work`, which owns all that it needs, on a thread of its own; false if it has not ended within `limit`.
bool ends_within(std::chrono::milliseconds limit, std::function<void()> work);

}  // namespace moonhalo
