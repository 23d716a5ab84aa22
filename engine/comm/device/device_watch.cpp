// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/device/device_watch.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <future>
#include <thread>

#include "moonhalo/engine/comm/communicator_backend.h"
#include "moonhalo/engine/comm/interpreter_lock.h"

namespace moonhalo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kQueryEvery{5};
// A rank that has failed may have done its part of what is under way before, so this may be over in a moment.
constexpr std::chrono::milliseconds kFailureGrace{250};
constexpr std::chrono::seconds kAbortWithin{5};

std::mutex& hook_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
std::function<void(const std::string&)>& hung_device_hook() {
  static auto* hook = new std::function<void(const std::string&)>;
  return *hook;
}

// One thread for all ranks of the process, while any of them has a device to watch.
class Looker {
 public:
  static Looker& of_process() {
    static auto* looker = new Looker;
    return *looker;
  }

  void add(DeviceWatch* watch) {
    const std::lock_guard start(start_mutex_);
    const std::lock_guard lock(mutex_);
    watches_.push_back(watch);
    if (!thread_.joinable()) {
      ends_ = false;
      thread_ = std::thread([this] { run(); });
      pthread_setname_np(thread_.native_handle(), "device watch");
    }
  }

  void remove(DeviceWatch* watch) {
    const std::lock_guard start(start_mutex_);
    {
      const std::lock_guard lock(mutex_);
      std::erase(watches_, watch);
      if (!watches_.empty()) return;
      ends_ = true;
    }
    woken_.notify_all();
    thread_.join();
    thread_ = {};
  }

  void wake() {
    busy_ = true;
    if (asleep_) woken_.notify_all();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!ends_) {
      busy_ = false;
      bool more = false;
      for (DeviceWatch* const watch : watches_) more = watch->poll() || more;
      asleep_ = true;
      // Bounded, since wake() takes no lock.
      woken_.wait_for(lock, more ? kQueryEvery : kQueryEvery * 20, [&] { return ends_ || (!more && busy_); });
      asleep_ = false;
    }
  }

  std::mutex start_mutex_, mutex_;
  std::condition_variable woken_;
  std::vector<DeviceWatch*> watches_;
  std::thread thread_;
  bool ends_ = false;
  std::atomic<bool> busy_{false}, asleep_{false};
};

void notify_ranks(Communicator& host, const std::string& reason) {
  try {
    backend_of(host).report_failure(reason);
  } catch (const CommError&) {  // ranks that cannot be reached have failed as well
  }
}

std::string failure_of_peer(Communicator& host, uint64_t call) {
  try {
    return backend_of(host).peer_failure(call);
  } catch (const CommError& error) {  // the host's own messages fail
    return error.what();
  }
}

bool ended(const DeviceWatch::Operation& operation) { return operation.done && operation.done->query(); }

}  // namespace

DeviceWatch::DeviceWatch(CommunicatorPtr host) : host_(std::move(host)) { Looker::of_process().add(this); }
DeviceWatch::~DeviceWatch() { Looker::of_process().remove(this); }

void DeviceWatch::add(const std::shared_ptr<WatchedComm>& comm) {
  const std::lock_guard lock(mutex_);
  std::erase_if(comms_, [](const auto& one) { return one.expired(); });
  comms_.push_back(comm);
}

DeviceWatch::OperationPtr DeviceWatch::begin(const CommunicatorPtr& group, const CollectiveCall& call,
                                             std::shared_ptr<const c10::Event> ready, std::chrono::milliseconds limit) {
  const bool limited = WaitingTime().left(limit) != Clock::duration::max();
  auto operation = std::make_shared<Operation>();
  operation->group = group;
  operation->call = call;
  operation->call.counts = operation->call.send_counts = operation->call.receive_counts = {};
  if (limited) operation->limit = limit;
  operation->ready = std::move(ready);
  const std::lock_guard lock(mutex_);
  under_way_.push_back(operation);
  Looker::of_process().wake();
  return operation;
}

void DeviceWatch::posted(const OperationPtr& operation, std::shared_ptr<const c10::Event> done) {
  const std::lock_guard lock(mutex_);
  operation->done = std::move(done);
}

void DeviceWatch::drop(const OperationPtr& operation) {
  const std::lock_guard lock(mutex_);
  std::erase(under_way_, operation);
}

void DeviceWatch::finish() {
  for (;;) {
    if (failed()) return;
    poll();
    {
      const std::lock_guard lock(mutex_);
      if (under_way_.empty()) return;
    }
    const InterpreterReleased interpreter_released;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

void DeviceWatch::check(const char* verb) const {
  if (!failed()) return;
  const std::lock_guard lock(mutex_);
  throw CommError(std::string(verb) + ": rank " + std::to_string(host_->rank()) + " of " +
                  std::to_string(host_->size()) + " stops: " + reason_);
}

void DeviceWatch::fail(const std::string& reason) {
  std::vector<std::weak_ptr<WatchedComm>> comms;
  {
    const std::lock_guard lock(mutex_);
    if (failed()) return;
    reason_ = reason;
    failed_ = true;
    aborting_since_ = Clock::now();
    comms = comms_;
  }
  notify_ranks(*host_, reason);
  for (const auto& one : comms) {
    std::shared_ptr<WatchedComm> comm = one.lock();
    if (!comm) continue;
    ++*aborts_;
    std::thread([comm = std::move(comm), aborts = aborts_] {
      comm->abort();
      --*aborts;
    }).detach();
  }
  Looker::of_process().wake();
}

// Looks at the first operation that has not ended; the others wait for it.
std::string DeviceWatch::found_in_operations() {
  while (!under_way_.empty() && ended(*under_way_.front())) {
    under_way_.pop_front();
    failure_seen_at_.reset();
  }
  if (under_way_.empty()) return "";
  Operation& first = *under_way_.front();
  if (!first.counts_time && first.ready->query()) {
    first.counts_time = true;
    first.time = {};
  }
  const std::string who = "rank " + std::to_string(host_->rank());
  const std::string what = "\n  have  " + first.call.text() +
                           (first.call.mark.what != nullptr ? std::string(", in ") + first.call.mark.what : "");
  if (first.counts_time && first.limit && first.time.poll() >= *first.limit) {
    return std::string(first.call.verb()) + " timed out after " + seconds_text(*first.limit) + " on the device of " +
           who + what + "\n  fix   see what the other ranks say; MOONHALO_TIMEOUT_S or --timeout sets the limit";
  }
  const CommunicatorPtr group = first.group.lock();
  // A group that is given up while it waits is of a rank that fails: any end is a reason then.
  const std::string heard = failure_of_peer(group ? *group : *host_, first.call.number);
  if (heard.empty()) {
    failure_seen_at_.reset();
    return "";
  }
  if (!failure_seen_at_) failure_seen_at_ = Clock::now();
  return Clock::now() - *failure_seen_at_ < kFailureGrace ? "" : heard;
}

std::string DeviceWatch::reason_to_fail() {
  const std::lock_guard lock(mutex_);
  for (const auto& one : comms_) {
    if (const std::shared_ptr<WatchedComm> comm = one.lock()) {
      const std::string problem = comm->problem();
      if (!problem.empty()) return "rank " + std::to_string(host_->rank()) + ": " + problem;
    }
  }
  return found_in_operations();
}

bool DeviceWatch::aborts_under_way() {
  std::string reason;
  {
    const std::lock_guard lock(mutex_);
    if (!aborting_since_) return false;
    if (Clock::now() - *aborting_since_ < kAbortWithin) return true;
    aborting_since_.reset();
    if (*aborts_ == 0) return false;
    reason = reason_;
  }
  std::function<void(const std::string&)> hook;
  {
    const std::lock_guard lock(hook_mutex());
    hook = hung_device_hook();
  }
  if (hook) hook("the communicators of a device could not be aborted: " + reason);
  return false;
}

bool DeviceWatch::poll() {
  if (failed()) return aborts_under_way();
  std::string reason;
  try {
    reason = reason_to_fail();
  } catch (const c10::Error& error) {  // of the device itself, such as an address that is not its own
    reason = "rank " + std::to_string(host_->rank()) + ": " + error.what_without_backtrace();
  }
  if (!reason.empty()) fail(reason);
  const std::lock_guard lock(mutex_);
  return !under_way_.empty();
}

void set_hung_device_hook(std::function<void(const std::string&)> hook) {
  const std::lock_guard lock(hook_mutex());
  hung_device_hook() = std::move(hook);
}

bool ends_within(std::chrono::milliseconds limit, std::function<void()> work) {
  auto ended = std::make_shared<std::promise<void>>();
  std::future<void> end = ended->get_future();
  std::thread([work = std::move(work), ended] {
    work();
    ended->set_value();
  }).detach();
  return end.wait_for(limit) == std::future_status::ready;
}

}  // namespace moonhalo
