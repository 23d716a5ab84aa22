// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_streams.h"

#include <pthread.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace moonhalo::testing::fake {
namespace {

// Streams of a device: the default one, then those of the pool, which are handed out in turn.
constexpr int kStreams = 9;

std::atomic<int64_t> lateness_us{1000};

// At the end of the process nothing more is run, as LibTorch takes its kernels away.
std::atomic<bool> ending{false};
constexpr auto kLongestEnd = std::chrono::seconds(2);

// A thread that waits runs all that is queued before, one after the other; else the thread of the queue does, later.
class Queue {
 public:
  Queue() : thread_([this] { run_late(); }) {
    pthread_setname_np(thread_.native_handle(), "fake stream");
    thread_.detach();
  }

  uint64_t add(std::function<void()> one) {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(one));
    if (asleep_) added_.notify_one();
    return ++added_count_;
  }

  // A runner holds no lock while its work runs, which may wait for another queue, and that one for places passed here.
  void run_until(uint64_t count) {
    if (done(count)) return;
    std::unique_lock lock(mutex_);
    while (done_ < count) {
      if (runs_) {
        ran_.wait(lock);
        continue;
      }
      runs_ = true;
      std::function<void()> next = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      if (!ending) next();
      next = nullptr;
      lock.lock();
      runs_ = false;
      ++done_;
      ran_.notify_all();
    }
  }

  // Drops what waits, and waits for what runs, but not for a kernel that never ends.
  void end() {
    std::deque<std::function<void()>> dropped;  // whose tensors may enqueue when they go
    std::unique_lock lock(mutex_);
    done_ += work_.size();
    dropped.swap(work_);
    ran_.wait_for(lock, kLongestEnd, [this] { return !runs_; });
  }

  void hurry() {
    const std::lock_guard lock(mutex_);
    hurried_ = added_count_;
    hurry_.notify_one();
  }
  uint64_t added() {
    const std::lock_guard lock(mutex_);
    return added_count_;
  }
  bool done(uint64_t count) const { return done_ >= count; }

 private:
  void run_late() {
    for (;;) {
      uint64_t until = 0;
      {
        std::unique_lock lock(mutex_);
        asleep_ = work_.empty();
        added_.wait(lock, [this] { return !work_.empty(); });
        asleep_ = false;
        until = added_count_;
        hurry_.wait_for(lock, std::chrono::microseconds(lateness_us), [&] { return hurried_ >= until; });
      }
      run_until(until);
    }
  }

  std::mutex mutex_;
  std::condition_variable added_, ran_, hurry_;
  std::deque<std::function<void()>> work_;
  uint64_t added_count_ = 0, hurried_ = 0;
  std::atomic<uint64_t> done_{0};
  bool asleep_ = false, runs_ = false;
  std::thread thread_;
};

struct Place {
  std::once_flag made;
  std::atomic<Queue*> queue = nullptr;
};
using Places = std::array<Place, kDevices * kStreams>;

// They live as long as the process: their threads are never joined.
Places& places() {
  static auto* all = [] {
    std::atexit([] {
      ending = true;
      for (Place& place : places()) {
        if (Queue* const made = place.queue) made->end();
      }
    });
    return new Places;
  }();
  return *all;
}

Queue& queue(int device, int64_t stream) {
  Place& place = places()[device * kStreams + stream];
  std::call_once(place.made, [&] { place.queue = new Queue; });
  return *place.queue;
}
Queue& queue(const c10::Stream& stream) { return queue(stream.device_index(), stream.id()); }

c10::Stream stream_at(int device, int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device)), id);
}

struct Current {
  int device = 0;
  std::array<int64_t, kDevices> streams{};
};
thread_local Current current;

}  // namespace

std::chrono::microseconds set_lateness(std::chrono::microseconds time) {
  return std::chrono::microseconds(lateness_us.exchange(time.count()));
}

void enqueue(const c10::Stream& stream, std::function<void()> work) { queue(stream).add(std::move(work)); }

void hurry(const c10::Stream& stream) { queue(stream).hurry(); }

void finish(const c10::Stream& stream) {
  Queue& all = queue(stream);
  all.run_until(all.added());
}

void finish_device(int device) {
  for (int stream = 0; stream < kStreams; ++stream) finish(stream_at(device, stream));
}

void finish_all_devices() {
  for (Place& place : places()) {
    if (Queue* const made = place.queue) made->run_until(made->added());
  }
}

bool finished(const c10::Stream& stream) {
  Queue& all = queue(stream);
  return all.done(all.added());
}

int current_device() { return current.device; }
int exchange_device(int device) { return std::exchange(current.device, device); }
c10::Stream default_stream(int device) { return stream_at(device, 0); }
c10::Stream current_stream(int device) { return stream_at(device, current.streams[device]); }

c10::Stream exchange_stream(const c10::Stream& stream) {
  const int device = stream.device_index();
  return stream_at(device, std::exchange(current.streams[device], stream.id()));
}

c10::Stream stream_of_pool(int device) {
  static std::array<std::atomic<int>, kDevices> next{};
  return stream_at(device, 1 + next[device]++ % (kStreams - 1));
}

void* handle_of(const c10::Stream& stream) {
  return reinterpret_cast<void*>(1 + stream.device_index() * kStreams + stream.id());
}
c10::Stream stream_of_handle(void* handle) {
  const auto number = reinterpret_cast<intptr_t>(handle) - 1;
  return stream_at(static_cast<int>(number / kStreams), number % kStreams);
}

struct Event::Place {
  Queue* queue;
  uint64_t count;
};

void Event::record(const c10::Stream& stream) {
  Queue& all = queue(stream);
  place_ = std::make_shared<Place>(&all, all.add([] {}));
}
void Event::hold_back(const c10::Stream& stream) const {
  if (place_) enqueue(stream, [place = place_] { place->queue->run_until(place->count); });
}
void Event::finish() const {
  if (place_) place_->queue->run_until(place_->count);
}
bool Event::finished() const { return !place_ || place_->queue->done(place_->count); }

}  // namespace moonhalo::testing::fake
