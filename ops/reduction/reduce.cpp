// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>

#include "moonhalo/engine/dispatch/axes.h"
#include "moonhalo/ops/support/reductions.h"

namespace moonhalo {
namespace {

// Adding up after the sum is adding up before it, unless the sum counts bools, converts to
// integers, or widens integers whose addends may have wrapped round.
bool is_linear(const OpCall& call) {
  const at::ScalarType dtype = call.tensor("self").dtype;
  if (at::isIntegralType(dtype, true) && dtype != at::kLong) return false;
  if (call.given("dtype") && at::isIntegralType(call.value("dtype").toScalarType(), true)) return false;
  const auto& partials = call.spec("self")->layout().partials;
  return std::all_of(partials.begin(), partials.end(),
                     [](const auto& p) { return !p || *p == ReduceOp::kSum || *p == ReduceOp::kAvg; });
}

std::optional<Plan> plan_sum(const OpCall& call) {
  const SpecPtr from = is_linear(call) ? call.spec("self") : without_partial(call.spec("self"));
  const auto dims = reduced_dims(call, from->ndim());
  return Plan{.inputs = {from}, .outputs = {reduced_spec(from, dims, keeps_dims(call), ReduceOp::kSum)}};
}

// The sum of a block divided by the global count: addends of the mean, however uneven the blocks.
std::optional<Plan> plan_mean(const OpCall& call) {
  auto plan = plan_sum(call);
  const at::ScalarType dtype = call.given("dtype") ? call.value("dtype").toScalarType() : call.tensor("self").dtype;
  if (!plan || at::isIntegralType(dtype, true)) return plan;  // integers: the operator's own error
  const SpecPtr& from = plan->inputs[0];
  const auto dims = reduced_dims(call, from->ndim());
  const int64_t count = global_count(*from, dims);
  plan->run = [=, keepdim = keeps_dims(call), at_self = call.arg("self")](LocalCall& call) {
    // The sum of a block may leave the range of half precision; its mean does not.
    const at::Tensor x = call.tensor(at_self);
    call.give(at::sum(x, dims, keepdim, wide_type(dtype)).div_(count).to(dtype));
  };
  return plan;
}

template <ReduceOp kLeft>
std::optional<Plan> plan_reduce(const OpCall& call) {
  const SpecPtr from = without_partial(call.spec("self"));
  const bool empty_is_none = call.name() == "aten::any.dims" || call.name() == "aten::all.dims";
  const auto dims = reduced_dims(call, from->ndim(), empty_is_none);
  return Plan{.inputs = {from}, .outputs = {reduced_spec(from, dims, keeps_dims(call), kLeft)}};
}

template <ReduceOp kLeft>
std::optional<Plan> plan_extremum(const OpCall& call) {
  auto plan = plan_reduce<kLeft>(call);
  if (!plan) return plan;
  const auto dims = reduced_dims(call, plan->inputs[0]->ndim());
  if (blocks_may_be_empty(plan->inputs[0], dims)) {
    plan->run = run_or_neutral(call, dims, keeps_dims(call), {kLeft});
  }
  return plan;
}

// max(a, b) shares its name with the reduction.
std::optional<Plan> plan_binary(const OpCall& call) {
  if (call.slots().size() != 2) return std::nullopt;
  return solve(call, broadcast_axes(call));
}

constexpr auto* kReduceSource = "PyTorch reductions; DTensor's Partial";

const Register reduce_rules{
    {.op = "aten::sum", .plan = plan_sum, .source = kReduceSource, .supports = "any cut; stays Partial(sum)"},
    {.op = "aten::mean", .plan = plan_mean, .source = kReduceSource, .supports = "any cut; Partial(sum), true counts"},
    {.op = {"aten::nansum", "aten::count_nonzero"},
     .plan = plan_reduce<ReduceOp::kSum>,
     .source = kReduceSource,
     .supports = "any cut"},
    {.op = "aten::prod", .plan = plan_reduce<ReduceOp::kProduct>, .source = kReduceSource, .supports = "any cut"},
    {.op = {"aten::any", "aten::_is_any_true"},
     .plan = plan_reduce<ReduceOp::kMax>,
     .source = kReduceSource,
     .supports = "any cut"},
    {.op = {"aten::all", "aten::_is_all_true"},
     .plan = plan_reduce<ReduceOp::kMin>,
     .source = kReduceSource,
     .supports = "any cut"},
    {.op = {"aten::amax", "aten::max"},
     .plan = plan_extremum<ReduceOp::kMax>,
     .source = kReduceSource,
     .supports = "any cut"},
    {.op = {"aten::amin", "aten::min"},
     .plan = plan_extremum<ReduceOp::kMin>,
     .source = kReduceSource,
     .supports = "any cut"},
    {.op = {"aten::max.other", "aten::min.other"}, .plan = plan_binary, .source = kReduceSource, .supports = "any cut"},
};

}  // namespace
}  // namespace moonhalo
