// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/neighborhood/kernels/cuda_launch.cuh"

namespace moonhalo::neighborhood::cuda {

void forward(const Problem& problem, Element element, int device) {
  check_extents(problem);
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  with_types(element,
             [&](auto value, auto sum) { run_forward<decltype(value), decltype(sum)>(problem, OnDevice{device}); });
}

}  // namespace moonhalo::neighborhood::cuda
