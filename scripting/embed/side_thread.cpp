// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/embed/side_thread.h"

#include <ATen/Parallel.h>

#include <utility>

namespace moonhalo::scripting {

SideThread::SideThread() : thread_([this, threads = at::get_num_threads()] { run(threads); }) {}

SideThread::~SideThread() {
  wait();
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SideThread::start(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    work_ = std::move(work);
    calls_ = std::make_unique<ActiveCall>();
  }
  changed_.notify_all();
}

void SideThread::wait() {
  const CountedElsewhere waiting;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return work_ == nullptr; });
}

void SideThread::run(int threads) {
  at::set_num_threads(threads);
  const CountedElsewhere counted;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ends_ || work_ != nullptr; });
    if (work_ == nullptr) return;
    const std::function<void()> work = work_;
    lock.unlock();
    work();
    lock.lock();
    calls_.reset();
    work_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace moonhalo::scripting
