// SPDX-License-Identifier: Apache-2.0
// Variances and standard deviations, with the mean or without.
#include <ATen/ATen.h>

#include <algorithm>

#include "moonhalo/ops/support/moments.h"

namespace moonhalo {
namespace {

// The variance of a complex variable is that of its real part plus that of its imaginary part.
Moments moments_of(const at::Tensor& x, const SpecPtr& spec, at::IntArrayRef dims) {
  if (!x.is_complex()) return global_moments(x.to(wide_type(x.scalar_type())), spec, dims);
  const Moments real = global_moments(at::real(x), spec, dims);
  const Moments imaginary = global_moments(at::imag(x), spec, dims);
  return {at::complex(real.mean, imaginary.mean), real.m2 + imaginary.m2, real.count};
}

bool has_empty_block(const ShardSpec& spec) {
  for (int64_t d = 0; d < spec.ndim(); ++d) {
    const auto& sizes = spec.cut(d).sizes;
    if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return true;
  }
  return false;
}

template <bool kRoot, bool kMean>
std::optional<Plan> plan_moments(const OpCall& call) {
  const SpecPtr from = without_partial(call.spec("self"));
  const bool keepdim = keeps_dims(call);
  const auto dims = reduced_dims(call, from->ndim());
  const SpecPtr result = reduced_spec(from, dims, keepdim);
  Plan plan{.inputs = {from}, .outputs = std::vector<SpecPtr>(kMean ? 2 : 1, result)};
  const at::ScalarType dtype = call.tensor("self").dtype;
  if (at::isIntegralType(dtype, true)) return plan;
  if (CutGroup(from, dims).alone()) {
    // LibTorch warns of an empty block that it has too few elements, although the whole has enough.
    if (from->global_numel() > 0 && has_empty_block(*from)) {
      plan.run = [=, at_self = call.arg("self")](LocalCall& call) {
        const at::Tensor x = call.tensor(at_self);
        if (x.numel() > 0) return call.run();
        call.give(at::empty(result->local_shape(), x.options().dtype(at::toRealValueType(dtype))));
        if (kMean) call.add(at::empty(result->local_shape(), x.options()));
      };
    }
    return plan;
  }
  const double correction = call.given("correction") ? call.value("correction").toScalar().toDouble() : 1;
  plan.run = [=, at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor x = call.tensor(at_self);
    Moments moments = moments_of(x, from, dims);
    const double freedom = std::max(0.0, static_cast<double>(moments.count) - correction);
    at::Tensor spread = moments.m2.div_(freedom);
    if (kRoot) spread.sqrt_();
    for (auto d = dims.rbegin(); !keepdim && d != dims.rend(); ++d) {
      spread = spread.squeeze(*d);
      moments.mean = moments.mean.squeeze(*d);
    }
    call.give(spread.to(at::toRealValueType(dtype)));
    if (kMean) call.add(moments.mean.to(dtype));
  };
  return plan;
}

constexpr auto* kVarianceSupports = "any cut, any correction";

const Register variance_rules{
    {.op = "aten::var.correction",
     .plan = plan_moments<false, false>,
     .supports = kVarianceSupports,
     .traffic = Traffic::kAllReduce},
    {.op = "aten::std.correction",
     .plan = plan_moments<true, false>,
     .supports = kVarianceSupports,
     .traffic = Traffic::kAllReduce},
    {.op = "aten::var_mean.correction",
     .plan = plan_moments<false, true>,
     .supports = kVarianceSupports,
     .traffic = Traffic::kAllReduce},
    {.op = "aten::std_mean.correction",
     .plan = plan_moments<true, true>,
     .supports = kVarianceSupports,
     .traffic = Traffic::kAllReduce},
};

}  // namespace
}  // namespace moonhalo
