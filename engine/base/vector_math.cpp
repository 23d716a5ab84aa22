// SPDX-License-Identifier: Apache-2.0
// MKL's vector functions (sqrt, exp, log, sin, ...) ask for the processor in their first call. As they remember the
// answer they write it twice: as found, then as a row of their table of kernels. A second thread whose first call falls
// between takes another row, and its result has about 35 right bits instead of 53 (seen on one of two replicas, in the
// first step of AdamW). So the first call is made while this library is loaded, before there are ranks.
#include <ATen/ops/ones.h>
#include <ATen/ops/sqrt.h>

namespace moonhalo {
namespace {

[[maybe_unused]] const at::Tensor first_call = at::sqrt(at::ones({1}, at::kDouble));

}  // namespace
}  // namespace moonhalo
