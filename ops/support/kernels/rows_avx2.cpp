// SPDX-License-Identifier: Apache-2.0
// Compiled with -mavx2 -mfma (CMakeLists.txt).
#include "moonhalo/ops/support/kernels/rows_body.h"

namespace moonhalo::rows {

extern const Kernels<float> kAvx2Float;
extern const Kernels<double> kAvx2Double;
constexpr Kernels<float> kAvx2Float = kernel_set<float, 32>();
constexpr Kernels<double> kAvx2Double = kernel_set<double, 32>();

}  // namespace moonhalo::rows
