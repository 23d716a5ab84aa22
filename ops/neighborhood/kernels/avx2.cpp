// SPDX-License-Identifier: Apache-2.0
// Compiled with -mavx2 -mfma (CMakeLists.txt).
#include "moonhalo/ops/neighborhood/kernels/slab.h"

namespace moonhalo::neighborhood {

extern const KernelSet kAvx2;
constexpr KernelSet kAvx2 = kernel_set<32>("AVX2");

}  // namespace moonhalo::neighborhood
