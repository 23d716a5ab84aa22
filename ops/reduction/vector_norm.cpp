// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <cmath>

#include "moonhalo/engine/comm/reduction_kernels.h"
#include "moonhalo/ops/support/reductions.h"

namespace moonhalo {
namespace {

bool is_empty(const at::Tensor& x, at::IntArrayRef dims) {
  return std::any_of(dims.begin(), dims.end(), [&](int64_t d) { return x.size(d) == 0; });
}

// Norms of order 0 and 1 add up and infinite orders are maxima, so they stay Partial. Otherwise the
// sum of powers goes over the ranks: (sum over all |x|^p)^(1/p).
std::optional<Plan> plan_norm(const OpCall& call) {
  const c10::IValue& order = call.value(call.has("p") ? "p" : "ord");
  const double p = order.isNone() ? 2 : order.toScalar().toDouble();
  const SpecPtr from = without_partial(call.spec("self"));
  call.output_shapes();  // refuses integers on ranks with empty blocks too
  const bool keepdim = keeps_dims(call);
  const auto dims = reduced_dims(call, from->ndim());
  const CutGroup group(from, dims);
  const at::ScalarType dtype =
      call.has("dtype") && call.given("dtype") ? call.value("dtype").toScalarType() : call.tensor("self").dtype;
  Plan plan{.inputs = {from}};
  if (p == 0 || p == 1) {
    plan.outputs = {reduced_spec(from, dims, keepdim, ReduceOp::kSum)};
  } else if (std::isinf(p)) {
    const ReduceOp op = p > 0 ? ReduceOp::kMax : ReduceOp::kMin;
    plan.outputs = {reduced_spec(from, dims, keepdim, op)};
    if (blocks_may_be_empty(from, dims)) {
      plan.run = [=, at_self = call.arg("self")](LocalCall& call) {
        const at::Tensor x = call.tensor(at_self);
        if (!is_empty(x, dims)) return call.run();
        const at::Tensor sums = at::sum(x, dims, keepdim, dtype);
        const at::ScalarType real = at::toRealValueType(dtype);
        call.give(at::full(sums.sizes(), neutral_value(op, real), x.options().dtype(real)));
      };
    }
  } else {
    plan.outputs = {reduced_spec(from, dims, keepdim)};
    if (group.alone()) return plan;
    plan.run = [=, at_self = call.arg("self")](LocalCall& call) {
      const at::Tensor x = call.tensor(at_self);
      at::Tensor powers;
      if (is_empty(x, dims)) {
        powers = at::sum(x, dims, keepdim, wide_type(dtype)).abs();
      } else {
        powers = at::linalg_vector_norm(x, p, dims, keepdim, wide_type(dtype)).pow(p);
      }
      call.give(group.all_reduce(powers).pow(1 / p).to(at::toRealValueType(dtype)));
    };
  }
  return plan;
}

// Without the root: sums of powers, which stay Partial.
std::optional<Plan> plan_powers(const OpCall& call) {
  if (std::isinf(call.value("ord").toScalar().toDouble())) return std::nullopt;
  const SpecPtr from = without_partial(call.spec("self"));
  const auto dims = reduced_dims(call, from->ndim());
  return Plan{.inputs = {from}, .outputs = {reduced_spec(from, dims, keeps_dims(call), ReduceOp::kSum)}};
}

// log sum exp(x) = m + log sum exp(x - m), m the maximum over all ranks.
std::optional<Plan> plan_logsumexp(const OpCall& call) {
  const SpecPtr from = without_partial(call.spec("self"));
  const bool keepdim = keeps_dims(call);
  const auto dims = reduced_dims(call, from->ndim());
  const CutGroup group(from, dims);
  Plan plan{.inputs = {from}, .outputs = {reduced_spec(from, dims, keepdim)}};
  if (group.alone()) return plan;
  plan.run = [=, at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor given = call.tensor(at_self);
    const at::ScalarType dtype =
        at::isIntegralType(given.scalar_type(), true) ? at::get_default_dtype_as_scalartype() : given.scalar_type();
    const at::Tensor x = given.to(wide_type(dtype));
    const at::Tensor height = x.is_complex() ? at::real(x) : x;
    at::Tensor top = is_empty(x, dims) ? at::sum(height, dims, true).fill_(-INFINITY) : at::amax(height, dims, true);
    top = group.all_reduce(top, ReduceOp::kMax);
    top = top.masked_fill(top.abs().eq(INFINITY), 0);
    at::Tensor result = group.all_reduce(at::sum(at::exp(x - top), dims, true)).log_().add_(top);
    for (auto d = dims.rbegin(); !keepdim && d != dims.rend(); ++d) result = result.squeeze(*d);
    call.give(result.to(dtype));
  };
  return plan;
}

constexpr auto* kVectorNormSupports = "any cut; orders 0, 1 and infinite stay Partial";

const Register vector_norm_rules{
    {.op = {"aten::norm", "aten::linalg_vector_norm"},
     .plan = plan_norm,
     .supports = kVectorNormSupports,
     .traffic = Traffic::kAllReduce},
    {.op = "aten::linalg__powsum", .plan = plan_powers, .supports = "any cut, stays Partial"},
    {.op = "aten::logsumexp", .plan = plan_logsumexp, .supports = "any cut", .traffic = Traffic::kAllReduce},
};

}  // namespace
}  // namespace moonhalo
