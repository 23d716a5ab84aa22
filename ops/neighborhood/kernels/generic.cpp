// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/neighborhood/kernels/slab.h"

namespace moonhalo::neighborhood {

const KernelSet& kernels_generic() {
  static constexpr KernelSet set = kernel_set<16>("generic");
  return set;
}

}  // namespace moonhalo::neighborhood
