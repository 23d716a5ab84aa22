// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <ctime>
#include <functional>
#include <mutex>
#include <vector>

namespace moonhalo::bench {

/// The time of all threads of this process, in milliseconds.
inline double processor_time() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

/// The time of this thread.
inline double thread_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

/// The value below which `quarters` quarters of the values are.
inline double quartile(std::vector<double> values, size_t quarters) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[(values.size() - 1) * quarters / 4];
}

/// Runs what rank 0 asks for: the unsharded step belongs into the program's main thread, whose memory is reused from
/// step to step, as it would be without ranks.
class MainThread {
 public:
  void run(const std::function<void()>& task) {
    std::unique_lock<std::mutex> lock(mutex_);
    task_ = &task;
    changed_.notify_all();
    changed_.wait(lock, [&] { return task_ == nullptr; });
  }
  void end() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  /// In the main thread, until end().
  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return task_ != nullptr || ended_; });
      if (task_ == nullptr) return;
      (*task_)();
      task_ = nullptr;
      changed_.notify_all();
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* task_ = nullptr;
  bool ended_ = false;
};

}  // namespace moonhalo::bench
