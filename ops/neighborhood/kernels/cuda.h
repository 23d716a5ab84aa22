// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/ops/neighborhood/kernels/kernels.h"

/// Neighbourhood attention on a GPU. The kernels: neighborhood_cuda_plain.h and, on tensor cores,
/// neighborhood_cuda_tensor.h; which of them a call takes: neighborhood_cuda_choice.h. In builds without CUDA both
/// functions throw NotImplementedError.
namespace moonhalo::neighborhood::cuda {

enum class Element { kFloat32, kFloat64, kBFloat16, kFloat16 };

/// The tensors of `problem` are on GPU `device` and have elements of that type, logsumexp float32 (float64 for
/// float64); slabs and sums are not used. Queued on LibTorch's current stream of the device, nothing is waited for.
/// NotImplementedError where the features of a tile exceed the device's shared memory, or a dim 2^31 rows.
void forward(const Problem& problem, Element element, int device);
/// All three gradients; the same bits every time. `delta`: memory of the shape and type of logsumexp, overwritten.
void backward(const Problem& problem, const Strided& delta, Element element, int device);

}  // namespace moonhalo::neighborhood::cuda
