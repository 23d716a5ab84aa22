// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/reduce.h"

namespace moonhalo {

/// Mean and sum of squared deviations over dims of a global tensor, with those dims kept as size
/// one.
struct Moments {
  at::Tensor mean;
  at::Tensor m2;
  int64_t count;  ///< global number of elements behind each entry
};

/// Moments of the global tensor whose block is `x` (real, held as `spec`) over `dims`. Every block
/// gives its own moments and the parts are combined with their true counts, so nothing cancels as
/// E[x^2] - E[x]^2 does. Empty blocks count nothing. Collective over the ranks that share these
/// dims: two all-reduces of the result's size. Source: Chan, Golub, LeVeque, "Updating formulae and
/// a pairwise algorithm for computing sample variances", 1979.
Moments global_moments(const at::Tensor& x, const SpecPtr& spec, at::IntArrayRef dims);

}  // namespace moonhalo
