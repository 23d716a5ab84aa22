// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/support/moments.h"

#include <ATen/ATen.h>

namespace moonhalo {

Moments global_moments(const at::Tensor& x, const SpecPtr& spec, at::IntArrayRef dims) {
  const CutGroup group(spec, dims);
  const int64_t count = global_count(*spec, dims);
  const at::Tensor mean = group.all_reduce(at::sum(x, dims, true)).div_(count);
  const at::Tensor deviation = x - mean;
  return {mean, group.all_reduce(at::sum(deviation.square(), dims, true)), count};
}

}  // namespace moonhalo
