// SPDX-License-Identifier: Apache-2.0
// tensor_split by a tensor of positions: PyTorch reads the positions from memory, so they are brought to every rank first.
// Met above autograd, where that composite would run; plain tensors go on to PyTorch's own kernel.
#include <ATen/ATen.h>
#include <ATen/ops/tensor_split_native.h>
#include <torch/library.h>

#include "engine/shard_tensor.h"

namespace moonhalo {
namespace {

std::vector<at::Tensor> split_at(const at::Tensor& self, const at::Tensor& positions, int64_t dim) {
  const at::Tensor whole = is_shard_tensor(positions) ? full_tensor(positions.detach()).contiguous() : positions;
  return at::native::tensor_split(self, whole, dim);
}

void meet(torch::Library& library) {
  library.impl("tensor_split.tensor_indices_or_sections", &split_at);
}

TORCH_LIBRARY_IMPL(aten, AutogradCPU, library) { meet(library); }
TORCH_LIBRARY_IMPL(aten, AutogradCUDA, library) { meet(library); }
TORCH_LIBRARY_IMPL(aten, AutogradOther, library) { meet(library); }
TORCH_LIBRARY_IMPL(aten, CustomRNGKeyId, library) { meet(library); }

}  // namespace
}  // namespace moonhalo
