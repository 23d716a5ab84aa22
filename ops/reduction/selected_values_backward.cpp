// SPDX-License-Identifier: Apache-2.0
// The derivative of max, min, median, sort, topk and the like. PyTorch's formula scatters into plain zeros of the
// global shape, which would gather the gradient to every rank; on ShardTensors it starts from zeros that are cut as the
// gradient is. Plain tensors keep PyTorch's formula. Decomposed above autograd, so it is claimed on autograd's keys.
#include <ATen/ATen.h>
#include <ATen/ops/value_selecting_reduction_backward_compositeimplicitautograd_dispatch.h>
#include <torch/library.h>

#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo {
namespace {

at::Tensor picked_values_backward(const at::Tensor& grad, int64_t dim, const at::Tensor& indices,
                                  c10::SymIntArrayRef sizes, bool keepdim) {
  if (!is_shard_tensor(grad) && !is_shard_tensor(indices)) {
    return at::compositeimplicitautograd::value_selecting_reduction_backward_symint(grad, dim, indices, sizes, keepdim);
  }
  const bool gone = !keepdim && !sizes.empty();
  const at::Tensor values = gone ? grad.unsqueeze(dim) : grad;
  const at::Tensor where = gone ? indices.unsqueeze(dim) : indices;
  const at::Tensor model = is_shard_tensor(where) ? where : values;
  return model.new_zeros_symint(sizes, values.options()).scatter(dim, where, values);
}

TORCH_LIBRARY_IMPL(aten, AutogradCPU, library) {
  library.impl("value_selecting_reduction_backward", &picked_values_backward);
}
TORCH_LIBRARY_IMPL(aten, AutogradCUDA, library) {
  library.impl("value_selecting_reduction_backward", &picked_values_backward);
}
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) {
  library.impl("value_selecting_reduction_backward", &picked_values_backward);
}

}  // namespace
}  // namespace moonhalo
