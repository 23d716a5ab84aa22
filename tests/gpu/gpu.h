// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/Context.h>
#include <ATen/cuda/Sleep.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include <cstdint>

/// Tests of this folder ask CUDA itself for these. They never install simulated devices (support/fake_device.h) in
/// their process: LibTorch takes one kind of accelerator.
namespace moonhalo::testing {

/// Returns the first GPU, which all ranks of a test share.
inline c10::Device gpu() { return {c10::kCUDA, 0}; }
inline c10::Stream current_gpu_stream() { return c10::impl::VirtualGuardImpl(gpu().type()).getStream(gpu()); }
/// Another one than the default stream.
inline c10::Stream another_gpu_stream() {
  return c10::impl::VirtualGuardImpl(gpu().type()).getStreamFromGlobalPool(gpu());
}
/// Queues a kernel that takes some 50 ms: what is queued behind it has not run when the host goes on, so a wait that
/// was left out shows.
inline void keep_gpu_busy() { at::cuda::sleep(100'000'000); }
inline void wait_for_gpu() { c10::cuda::device_synchronize(); }
/// Bytes that tensors hold there.
inline int64_t gpu_bytes_in_use() {
  const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return c10::cuda::CUDACachingAllocator::getDeviceStats(gpu().index()).allocated_bytes[all].current;
}

/// A suite that is skipped where there is no GPU.
template <typename Base = ::testing::Test>
class OnGpu : public Base {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device was found";
  }
};

}  // namespace moonhalo::testing
