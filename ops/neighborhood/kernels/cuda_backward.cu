// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/neighborhood/kernels/cuda_launch.cuh"

namespace moonhalo::neighborhood::cuda {

void backward(const Problem& problem, const Strided& delta, Element element, int device) {
  check_extents(problem);
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  with_types(element, [&](auto value, auto sum) {
    run_backward<decltype(value), decltype(sum)>(problem, delta, OnDevice{device});
  });
}

}  // namespace moonhalo::neighborhood::cuda
