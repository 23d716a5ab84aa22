// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <string>

#include "tests/support/fake_streams.h"

/// A simulated accelerator: LibTorch's PrivateUse1 under the name "fake", with eight devices.
///
/// Its memory cannot be read by the host, its streams run late, and what is not yet computed, or freed, is NaN. So
/// what a program leaves out on the way to a real device is seen here: an event before or after messages, a buffer
/// that must live on, a number that the host reads. Operators run LibTorch's CPU kernels on copies of what the
/// stream has computed, since the shapes of results must be known at once; results are in memory when the stream
/// gets there. Like CUDA, it refuses tensors of the host among its own, single numbers and indices excepted. Not
/// shown: kernels of CUDA, what cuDNN chooses, speed.
namespace moonhalo::testing::fake {

/// Makes the devices known to LibTorch, once in a process; until then nothing is different from a machine without any.
void install();
c10::Device device(int index);

/// Counts what a thread has asked of the devices.
struct Counts {
  int64_t launches = 0;     ///< operators, and copies on a device or between two
  int64_t host_copies = 0;  ///< copies to the host and from it
  int64_t host_bytes = 0;   ///< what they carried
  int64_t pageable = 0;     ///< those to a device whose memory of the host is not page-locked: it may wait for them
  int64_t host_waits = 0;   ///< the host waited for a stream: item(), copies to the host, synchronize()
  int64_t events = 0;       ///< recorded
  Counts operator-(const Counts& before) const;
};
Counts counts();
/// The launches by the operators' names.
const std::map<std::string, int64_t>& launches_by_operator();

/// Mistakes that a test may plant: the kinds of waiting that get lost.
struct Lost {
  bool of_pool_streams = false;     ///< streams of the pool wait for no events
  bool of_default_streams = false;  ///< nor the default ones
  bool of_the_host = false;         ///< nor the host
};
void lose(const Lost& waits);

/// For fake_*.cpp: count, unless a kernel runs on this thread.
void count_launch(const std::string& name);
void count_host_copy(size_t bytes);
void count_pageable();
void count_host_wait();
void count_event();
/// While one lives on a thread, nothing is counted and no wait is lost: the device itself is at work.
class InsideDevice {
 public:
  InsideDevice();
  ~InsideDevice();
  InsideDevice(const InsideDevice&) = delete;
};
void register_operators();
void register_kernels();

}  // namespace moonhalo::testing::fake
