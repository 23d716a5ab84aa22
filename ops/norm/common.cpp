// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/norm/common.h"

#include <ATen/ATen.h>

#include <numeric>

namespace moonhalo {

at::Tensor widen(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.to(wide_type(tensor.scalar_type())) : tensor;
}

at::Tensor per_channel(const at::Tensor& values, int64_t ndim) {
  std::vector<int64_t> shape(ndim, 1);
  shape[1] = values.numel();
  return values.reshape(shape);
}

std::vector<bool> required_gradients(const OpCall& call) {
  const auto mask = call.value("output_mask").toBoolList();
  return {mask.begin(), mask.end()};
}

std::vector<SpecPtr> masked(const std::vector<bool>& mask, std::vector<SpecPtr> specs) {
  for (size_t i = 0; i < specs.size(); ++i) {
    if (!mask[i]) specs[i] = nullptr;
  }
  return specs;
}

void run_contiguous(LocalCall& call) {
  for (c10::IValue& value : call.values()) {
    if (value.isTensor() && value.toTensor().defined() && !value.toTensor().is_contiguous())
      value = value.toTensor().contiguous();
  }
  call.run();
}

std::vector<int64_t> dims_from(int64_t ndim, int64_t first) {
  std::vector<int64_t> dims(ndim - first);
  std::iota(dims.begin(), dims.end(), first);
  return dims;
}

std::vector<int64_t> dims_but(int64_t ndim, int64_t kept) {
  std::vector<int64_t> dims = dims_from(ndim, 0);
  dims.erase(dims.begin() + kept);
  return dims;
}

}  // namespace moonhalo
