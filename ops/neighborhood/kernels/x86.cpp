// SPDX-License-Identifier: Apache-2.0
// The choice on x86-64, LibTorch's own (ATEN_CPU_CAPABILITY=default takes the generic kernels).
#include <ATen/Version.h>

#include <string_view>

#include "moonhalo/ops/neighborhood/kernels/kernels.h"

namespace moonhalo::neighborhood {

extern const KernelSet kAvx2;

const KernelSet& kernels_native() {
  static const bool has_avx2 = std::string_view(at::get_cpu_capability()).starts_with("AVX");
  return has_avx2 ? kAvx2 : kernels_generic();
}

}  // namespace moonhalo::neighborhood
