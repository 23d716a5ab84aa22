// SPDX-License-Identifier: Apache-2.0
// Compiled without fused multiply-adds, so that uniform numbers have the bits of the CPU.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "moonhalo/engine/random/kernels/fill.h"

namespace moonhalo::random_fill {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 8192;

template <typename Kernel>
__global__ void __launch_bounds__(kThreads) each_element(const __grid_constant__ Launch launch) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < launch.elements; i += step)
    Kernel::run(launch, i);
}

struct OnCuda {
  template <typename Kernel>
  static void run(const Launch& launch, c10::Device device) {
    const c10::cuda::CUDAGuard guard(device);
    const auto blocks = static_cast<unsigned>(std::min((launch.elements + kThreads - 1) / kThreads, kMostBlocks));
    each_element<Kernel><<<blocks, kThreads, 0, c10::cuda::getCurrentCUDAStream(device.index())>>>(launch);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
};

const bool registered = (register_fill_kernel(c10::kCUDA, kernel_by<OnCuda>()), true);

}  // namespace
}  // namespace moonhalo::random_fill
