// SPDX-License-Identifier: Apache-2.0
// The choice on other processors.
#include "moonhalo/ops/neighborhood/kernels/kernels.h"

namespace moonhalo::neighborhood {

const KernelSet& kernels_native() { return kernels_generic(); }

}  // namespace moonhalo::neighborhood
