// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "moonhalo/engine/comm/diagnostics/calling_threads.h"

namespace moonhalo::scripting {

/// A thread that does one thing at a time for another.
class SideThread {
 public:
  /// As many threads of LibTorch as the calling thread has.
  SideThread();
  /// After what is under way.
  ~SideThread();
  SideThread(const SideThread&) = delete;

  /// `work` throws nothing. Not while something is under way.
  void start(std::function<void()> work);
  void wait();

 private:
  void run(int threads);
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> work_;
  std::unique_ptr<ActiveCall> calls_;  // while there is work
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace moonhalo::scripting
