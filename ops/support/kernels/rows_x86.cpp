// SPDX-License-Identifier: Apache-2.0
// The choice on x86-64, LibTorch's own (ATEN_CPU_CAPABILITY=default takes the generic kernels).
#include <ATen/Version.h>

#include <string_view>

#include "moonhalo/ops/support/kernels/rows.h"

namespace moonhalo::rows {

extern const Kernels<float> kAvx2Float, kGenericFloat;
extern const Kernels<double> kAvx2Double, kGenericDouble;

namespace {

bool has_avx2() {
  static const bool has = std::string_view(at::get_cpu_capability()).starts_with("AVX");
  return has;
}

}  // namespace

template <>
const Kernels<float>& kernels<float>() {
  return has_avx2() ? kAvx2Float : kGenericFloat;
}
template <>
const Kernels<double>& kernels<double>() {
  return has_avx2() ? kAvx2Double : kGenericDouble;
}

}  // namespace moonhalo::rows
