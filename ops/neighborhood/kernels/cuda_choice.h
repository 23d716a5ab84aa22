// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/ops/neighborhood/kernels/cuda_plain.h"
#include "moonhalo/ops/neighborhood/kernels/cuda_tensor.h"

/// Chooses which kernels a call runs, and with what: the same on a GPU and in tests. A runner is called as
/// run(Kernel{}, launch, blocks, bytes of shared memory of a block) and runs Kernel::run(launch, memory) in every
/// thread.
namespace moonhalo::neighborhood::cuda {

template <typename T, typename Sum, int kSlots>
struct ForwardPlain {
  static __device__ void run(const Launch& launch, unsigned char* memory) {
    forward_plain<T, Sum, kSlots>(launch, memory);
  }
};
template <typename T, int kTiles>
struct ForwardTensor {
  static __device__ void run(const Launch& launch, unsigned char* memory) { forward_tensor<T, kTiles>(launch, memory); }
};
template <typename T, typename Sum>
struct Delta {
  static __device__ void run(const Launch& launch, unsigned char*) { delta_plain<T, Sum>(launch); }
};
template <typename T, typename Sum, int kSlots, bool kKeyRows>
struct BackwardPlain {
  static __device__ void run(const Launch& launch, unsigned char* memory) {
    backward_plain<T, Sum, kSlots, kKeyRows>(launch, memory);
  }
};
template <typename T, int kTiles, bool kKeyRows>
struct BackwardTensor {
  static __device__ void run(const Launch& launch, unsigned char* memory) {
    backward_tensor<T, kTiles, kKeyRows>(launch, memory);
  }
};

/// Do rows of this tensor of 2-byte elements begin on 16 bytes.
inline bool aligned(const Strided& tensor) {
  int64_t strides = tensor.batch | tensor.head;
  for (const int64_t stride : tensor.dims) strides |= stride;
  return strides % 8 == 0 && reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0;
}

/// May tensor cores do it: 2-byte elements, features in multiples of 16, aligned rows.
template <typename T>
bool tensor_cores(const Problem& p, bool backward) {
  return sizeof(T) == 2 && p.head_dim % kSide == 0 && p.value_dim % kSide == 0 && p.value_dim > 0 &&
         p.head_dim <= kTensorFeatures && p.value_dim <= kTensorFeatures && aligned(p.query) && aligned(p.key) &&
         aligned(p.value) && (!backward || aligned(p.grad_output));
}

template <typename T, typename Sum, typename Run>
void run_forward(const Problem& p, const Run& run) {
  if constexpr (sizeof(T) == 2) {
    if (tensor_cores<T>(p, /*backward=*/false)) {
      const Launch launch = launch_of<false>(p, kTensorRows);
      const size_t bytes = tensor_forward_shared<T>(p).bytes;
      if (p.value_dim <= 2 * kSide) {
        run(ForwardTensor<T, 2>{}, launch, launch.blocks(), bytes);
      } else if (p.value_dim <= 4 * kSide) {
        run(ForwardTensor<T, 4>{}, launch, launch.blocks(), bytes);
      } else {
        run(ForwardTensor<T, 8>{}, launch, launch.blocks(), bytes);
      }
      return;
    }
  }
  const Launch launch = launch_of<false>(p, kPlainRows);
  const size_t bytes = plain_forward_shared<Sum>(p).bytes;
  if (p.value_dim <= kWarpLanes) {
    run(ForwardPlain<T, Sum, 1>{}, launch, launch.blocks(), bytes);
  } else {
    run(ForwardPlain<T, Sum, 4>{}, launch, launch.blocks(), bytes);
  }
}

template <typename T, typename Sum, bool kKeyRows, typename Run>
void run_gradients(const Problem& p, const Strided& delta, const Run& run) {
  const int64_t features = p.head_dim > p.value_dim || !kKeyRows ? p.head_dim : p.value_dim;
  if constexpr (sizeof(T) == 2) {
    if (tensor_cores<T>(p, /*backward=*/true)) {
      Launch launch = launch_of<kKeyRows>(p, kTensorRows);
      launch.delta = delta;
      const size_t bytes = tensor_backward_shared<T, kKeyRows>(p).bytes;
      if (features <= 2 * kSide) {
        run(BackwardTensor<T, 2, kKeyRows>{}, launch, launch.blocks(), bytes);
      } else if (features <= 4 * kSide) {
        run(BackwardTensor<T, 4, kKeyRows>{}, launch, launch.blocks(), bytes);
      } else {
        run(BackwardTensor<T, 8, kKeyRows>{}, launch, launch.blocks(), bytes);
      }
      return;
    }
  }
  Launch launch = launch_of<kKeyRows>(p, kPlainRows);
  launch.delta = delta;
  const size_t bytes = plain_backward_shared<Sum, kKeyRows>(p).bytes;
  if (features <= kWarpLanes) {
    run(BackwardPlain<T, Sum, 1, kKeyRows>{}, launch, launch.blocks(), bytes);
  } else {
    run(BackwardPlain<T, Sum, 4, kKeyRows>{}, launch, launch.blocks(), bytes);
  }
}

/// `delta` has the shape and type of logsumexp and is overwritten.
template <typename T, typename Sum, typename Run>
void run_backward(const Problem& p, const Strided& delta, const Run& run) {
  Launch launch{p};
  launch.delta = delta;
  run(Delta<T, Sum>{}, launch, delta_blocks(p), 0);
  run_gradients<T, Sum, false>(p, delta, run);
  run_gradients<T, Sum, true>(p, delta, run);
}

}  // namespace moonhalo::neighborhood::cuda
