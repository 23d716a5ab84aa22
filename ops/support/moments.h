// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "moonhalo/ops/support/reductions.h"

namespace moonhalo {

/// Mean and sum of squared deviations over dims of a global tensor, with those dims kept as size
/// one.
struct Moments {
  at::Tensor mean;
  at::Tensor m2;
  int64_t count;  ///< global number of elements behind each entry
};

/// Moments of the global tensor whose block is `x` (real, held as `spec`) over `dims`, in two
/// passes: the mean of all, then the squared deviations from it, both with true counts; nothing
/// cancels as E[x^2] - E[x]^2 does, and empty blocks add nothing. Collective over the ranks that
/// share these dims: two all-reduces of the result's size.
Moments global_moments(const at::Tensor& x, const SpecPtr& spec, at::IntArrayRef dims);

}  // namespace moonhalo
