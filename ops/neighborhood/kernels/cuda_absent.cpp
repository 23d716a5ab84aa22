// SPDX-License-Identifier: Apache-2.0
// Stands for cuda_*.cu in builds without CUDA.
#include <c10/util/Exception.h>

#include "moonhalo/ops/neighborhood/kernels/cuda.h"

namespace moonhalo::neighborhood::cuda {
namespace {

[[noreturn]] void refuse(int device) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "neighborhood_attention: Moonhalo was built without CUDA\n  have  tensors on cuda:", device,
      "\n  fix   build the preset `cuda` (it needs the CUDA toolkit), or move the tensors to the CPU");
}

}  // namespace

void forward(const Problem&, Element, int device) { refuse(device); }
void backward(const Problem&, const Strided&, Element, int device) { refuse(device); }

}  // namespace moonhalo::neighborhood::cuda
