// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "moonhalo/ops/norm/common.h"

namespace moonhalo {

//     input [N, C, spatial...]    weight, bias [C]    mean, rstd [N, groups]
//
// Any dim may be cut, channels also through the middle of a group: every rank takes moments per channel, adds its
// channels up to groups, and the ranks that share a sample add their groups.

/// The block at hand and whom it shares its groups with.
struct GroupShape {
  SpecPtr spec;  ///< of the input
  int64_t groups;
  int64_t count;   ///< elements of the global tensor behind a group's mean
  CutGroup ranks;  ///< that share a sample

  /// A block as [n, c, hw].
  at::Tensor flat(const at::Tensor& block) const;
};

struct Normalized {
  at::Tensor y, mean, rstd;  ///< y flat; mean and rstd [n, groups]
};
struct GroupGradients {
  at::Tensor input, weight,
      bias;  ///< input flat; weight and bias [c], this block's addends; undefined where not required
};

/// Collective over the ranks that share a sample: one all-reduce of [2, n, groups] numbers, in float64 and on other
/// devices than CPUs two of half that. `x` is flat and of a type that sums are taken in; weight and bias are undefined
/// or of that type, [c].
Normalized normalize_groups(const GroupShape& shape, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, double eps);

/// With x^ the normalized input, g = grad * weight, and means over a group:
///     d input = rstd (g - mean(g) - x^ mean(g x^)),   d weight = sum over samples and points of grad x^,   d bias =
///                                                     that of grad
/// Collective as above if the input's gradient is required: one all-reduce.
GroupGradients normalize_groups_back(const GroupShape& shape, const at::Tensor& grad, const at::Tensor& x,
                                     const at::Tensor& mean, const at::Tensor& rstd, const at::Tensor& weight,
                                     const std::vector<bool>& required);

}  // namespace moonhalo
