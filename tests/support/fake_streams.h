// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Stream.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace moonhalo::testing::fake {

inline constexpr int kDevices = 8;

/// A stream begins nothing until it is waited for, or until this time has passed, so that results which were not waited
/// for are missing on nearly every run. Returns the time before.
std::chrono::microseconds set_lateness(std::chrono::microseconds time);

/// Runs `work` on the stream, after all that was given to it before.
void enqueue(const c10::Stream& stream, std::function<void()> work);
/// Begins with all that was given to the stream so far, as if it were waited for.
void hurry(const c10::Stream& stream);
/// Until all that was given to the stream so far has run.
void finish(const c10::Stream& stream);
void finish_device(int device);
/// The same for every stream that was used.
void finish_all_devices();
bool finished(const c10::Stream& stream);

/// The device of this thread, and its current stream on each device. Stream 0 is the default one, which threads share.
int current_device();
int exchange_device(int device);
c10::Stream current_stream(int device);
c10::Stream exchange_stream(const c10::Stream& stream);
c10::Stream stream_of_pool(int device);
c10::Stream default_stream(int device);
/// A stream as libraries of the device are given it.
void* handle_of(const c10::Stream& stream);
c10::Stream stream_of_handle(void* handle);

/// A place in a stream. Every record is a new place.
class Event {
 public:
  void record(const c10::Stream& stream);
  void hold_back(const c10::Stream& stream) const;  ///< what comes later there waits for the recorded place
  void finish() const;
  bool finished() const;

 private:
  struct Place;
  std::shared_ptr<Place> place_;
};

}  // namespace moonhalo::testing::fake
