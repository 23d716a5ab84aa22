// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>

#include "moonhalo/engine/dispatch/axes.h"
#include "moonhalo/ops/support/reductions.h"

namespace moonhalo {
namespace {

// Softmax along a cut dim: every rank keeps its rows and the ranks agree on one maximum and one sum
// per line, so the traffic is two all-reduces of a slice, never the tensor.
template <bool kLog>
std::optional<Plan> plan_softmax(const OpCall& call) {
  const SpecPtr from = without_partial(call.spec("self"));
  Plan plan{.inputs = {from}, .outputs = {from}};
  const int64_t dim = at::maybe_wrap_dim(call.integer("dim"), from->ndim());
  // _safe_softmax: a line of -inf alone becomes zeros.
  const bool safe = call.has("dtype");
  const at::ScalarType dtype = safe && call.given("dtype")           ? call.value("dtype").toScalarType()
                               : !safe && call.flag("half_to_float") ? at::kFloat
                                                                     : call.tensor("self").dtype;
  // On an empty block LibTorch's kernel would not say so.
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(dtype), call.name(), ": not implemented for ", dtype, "\n  have  ",
                              call.describe(), "\n  fix   convert to a floating type first");
  if (from->ndim() == 0) return plan;
  const CutGroup group(from, dim);
  if (group.alone()) return plan;
  plan.run = [=, at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor given = call.tensor(at_self);
    const at::Tensor x = given.to(wide_type(dtype));
    at::Tensor top = x.size(dim) > 0 ? at::amax(x, dim, true) : at::sum(x, dim, true).fill_(-INFINITY);
    top = group.all_reduce(top, ReduceOp::kMax);
    at::Tensor shifted = x - top;
    at::Tensor powers = kLog ? at::exp(shifted) : shifted.exp_();
    const at::Tensor total = group.all_reduce(at::sum(powers, dim, true));
    at::Tensor result = kLog ? shifted.sub_(at::log(total)) : powers.div_(total);
    if (safe) result.masked_fill_(top == -INFINITY, 0);
    call.give(result.to(dtype));
  };
  return plan;
}

// All dims are kept as they are cut; along a cut `dim` one sum per line is shared.
template <bool kLog>
std::optional<Plan> plan_backward(const OpCall& call) {
  if (call.slots().size() != 2) return std::nullopt;
  Plan plan = solve(call, broadcast_axes(call));
  const SpecPtr spec = plan.inputs[0];
  if (spec->ndim() == 0) return plan;
  const int64_t dim = at::maybe_wrap_dim(call.integer("dim"), spec->ndim());
  const CutGroup group(spec, dim);
  if (group.alone()) return plan;
  const at::ScalarType dtype = call.value("input_dtype").toScalarType();
  plan.run = [=, at_grad_output = call.arg("grad_output"), at_output = call.arg("output")](LocalCall& call) {
    const at::Tensor gradient = call.tensor(at_grad_output);
    const at::Tensor result = call.tensor(at_output);
    const at::ScalarType wide = wide_type(result.scalar_type());
    const at::Tensor grad = gradient.to(wide), y = result.to(wide);
    const at::Tensor product = kLog ? grad : grad * y;
    const at::Tensor total = group.all_reduce(at::sum(product, dim, true));
    const at::Tensor scale = kLog ? at::exp(y) : y;
    call.give(at::sub(product, scale * total).to(dtype));
  };
  return plan;
}

constexpr auto* kSoftmaxSupports = "any cut";

const Register softmax_rules{
    {.op = {"aten::_softmax", "aten::_safe_softmax"},
     .plan = plan_softmax<false>,
     .supports = kSoftmaxSupports,
     .traffic = Traffic::kAllReduce},
    {.op = "aten::_log_softmax",
     .plan = plan_softmax<true>,
     .supports = kSoftmaxSupports,
     .traffic = Traffic::kAllReduce},
    {.op = "aten::_softmax_backward_data",
     .plan = plan_backward<false>,
     .supports = kSoftmaxSupports,
     .traffic = Traffic::kAllReduce},
    {.op = "aten::_log_softmax_backward_data",
     .plan = plan_backward<true>,
     .supports = kSoftmaxSupports,
     .traffic = Traffic::kAllReduce},
};

}  // namespace
}  // namespace moonhalo
