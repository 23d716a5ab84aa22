// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/support/kernels/rows_body.h"

namespace moonhalo::rows {

extern const Kernels<float> kGenericFloat;
extern const Kernels<double> kGenericDouble;
constexpr Kernels<float> kGenericFloat = kernel_set<float, 16>();
constexpr Kernels<double> kGenericDouble = kernel_set<double, 16>();

}  // namespace moonhalo::rows
