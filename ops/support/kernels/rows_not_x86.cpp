// SPDX-License-Identifier: Apache-2.0
// The choice on other processors.
#include "moonhalo/ops/support/kernels/rows.h"

namespace moonhalo::rows {

extern const Kernels<float> kGenericFloat;
extern const Kernels<double> kGenericDouble;

template <>
const Kernels<float>& kernels<float>() {
  return kGenericFloat;
}
template <>
const Kernels<double>& kernels<double>() {
  return kGenericDouble;
}

}  // namespace moonhalo::rows
