// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

// The device code stands after the headers whose words it uses.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>

#include "moonhalo/ops/neighborhood/kernels/cuda.h"
#include "moonhalo/ops/neighborhood/kernels/cuda_choice.h"

namespace moonhalo::neighborhood::cuda {

template <typename Kernel>
__global__ void __launch_bounds__(kThreads) entry(const __grid_constant__ Launch launch) {
  extern __shared__ __align__(128) unsigned char memory[];
  Kernel::run(launch, memory);
}

/// Runs kernels on the current stream of the current device.
struct OnDevice {
  int device = 0;

  template <typename Kernel>
  void operator()(Kernel, const Launch& launch, int64_t blocks, size_t bytes) const {
    int most = 0;
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    TORCH_CHECK_NOT_IMPLEMENTED(bytes <= static_cast<size_t>(most), "neighborhood_attention: head_dim ",
                                launch.problem.head_dim, " and value_dim ", launch.problem.value_dim, " take ", bytes,
                                " bytes of shared memory\n  have  a GPU with ", most,
                                " bytes for a block\n  fix   use more heads of fewer features");
    TORCH_CHECK_NOT_IMPLEMENTED(blocks <= std::numeric_limits<int>::max(), "neighborhood_attention: ", blocks,
                                " blocks of queries or keys are more than one launch takes\n  fix   split the batch");
    // Shared memory beyond the usual 48 KB must be asked for, once per kernel and device; asking again costs little.
    // Always the most:
    // with what is needed here, another rank's thread could lower it between this and the launch.
    constexpr size_t kUsual = 48 * 1024;
    if (bytes > kUsual) {
      C10_CUDA_CHECK(cudaFuncSetAttribute(entry<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
    }
    entry<Kernel><<<static_cast<unsigned>(blocks), kThreads, bytes, c10::cuda::getCurrentCUDAStream(device)>>>(launch);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
};

inline void check_extents(const Problem& problem) {
  for (const Axis& axis : problem.axes) {
    TORCH_CHECK_NOT_IMPLEMENTED(axis.extent <= std::numeric_limits<int>::max(), "neighborhood_attention: a dim of ",
                                axis.extent, " rows\n  fix   use dims of less than 2^31 rows on a GPU");
  }
}

/// Calls run(T{}, Sum{}) with the types of an element and of its sums.
template <typename Run>
void with_types(Element element, const Run& run) {
  switch (element) {
    case Element::kFloat32:
      return run(float{}, float{});
    case Element::kFloat64:
      return run(double{}, double{});
    case Element::kBFloat16:
      return run(__nv_bfloat16{}, float{});
    case Element::kFloat16:
      return run(__half{}, float{});
  }
}

}  // namespace moonhalo::neighborhood::cuda
