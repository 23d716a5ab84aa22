// SPDX-License-Identifier: Apache-2.0
#include "tests/support/ranks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace moonhalo::testing {
namespace {

constexpr std::chrono::seconds kGrace{10};

// The ranks that run, and a way to stop them, for a thread that watches.
class Watch {
 public:
  Watch(int ranks, std::chrono::milliseconds limit)
      : communicators_(ranks), running_(ranks, true), thread_([this, limit] { watch(limit); }) {}

  ~Watch() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      all_ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void begin(Communicator& communicator) {
    std::lock_guard<std::mutex> lock(mutex_);
    communicators_[communicator.rank()] = communicator.shared_from_this();
  }

  void end(int rank) {
    std::lock_guard<std::mutex> lock(mutex_);
    communicators_[rank].reset();
    running_[rank] = false;
  }

 private:
  std::string running() const {
    std::string text;
    for (size_t rank = 0; rank < running_.size(); ++rank) {
      if (running_[rank]) text += (text.empty() ? "" : ", ") + std::to_string(rank);
    }
    return text;
  }

  void watch(std::chrono::milliseconds limit) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (changed_.wait_for(lock, limit, [this] { return all_ended_; })) return;
    const std::string hung = running();
    ADD_FAILURE() << "on_ranks: after " << limit.count() << " ms these of " << running_.size()
                  << " ranks still run: " << hung;
    CommunicatorPtr any;
    for (const CommunicatorPtr& communicator : communicators_) {
      if (communicator) any = communicator;
    }
    if (any) any->abort("the test's time is over; ranks still running: " + hung);
    if (changed_.wait_for(lock, kGrace, [this] { return all_ended_; })) return;
    std::fprintf(stderr, "on_ranks: rank %s cannot be stopped, so the test program ends here\n", running().c_str());
    std::fflush(nullptr);
    std::_Exit(EXIT_FAILURE);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<CommunicatorPtr> communicators_;
  std::vector<bool> running_;
  bool all_ended_ = false;
  std::thread thread_;
};

}  // namespace

void on_ranks(int ranks, const std::function<void(Communicator&)>& fn, std::chrono::milliseconds limit) {
  Watch watch(ranks, limit);
  run_test_ranks(ranks, [&](Communicator& communicator) {
    struct Ended {
      Watch& watch;
      int rank;
      ~Ended() { watch.end(rank); }
    } ended{watch, communicator.rank()};
    watch.begin(communicator);
    fn(communicator);
  });
}

}  // namespace moonhalo::testing
