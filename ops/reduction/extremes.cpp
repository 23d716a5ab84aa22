// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <limits>

#include "moonhalo/engine/comm/reduction_kernels.h"
#include "moonhalo/ops/support/reductions.h"

namespace moonhalo {
namespace {

constexpr int64_t kNowhere = std::numeric_limits<int64_t>::max();

struct Extreme {
  at::Tensor values;
  at::Tensor indices;
};

// Every rank brings its extreme and where it stands in the whole tensor; the first place that holds
// the extreme of all wins, and NaN beats numbers, as on one device.
Extreme combine(const CutGroup& group, Extreme mine, ReduceOp op) {
  const at::Tensor best = group.all_reduce(mine.values.clone(), op);
  at::Tensor winner = mine.values.eq(best);
  if (best.is_floating_point()) winner = winner.logical_or(mine.values.isnan().logical_and(best.isnan()));
  mine.indices = group.all_reduce(at::where(winner, mine.indices, kNowhere), ReduceOp::kMin);
  mine.values = best;
  return mine;
}

Extreme nothing(const at::Tensor& x, at::IntArrayRef shape, ReduceOp op) {
  return {at::full(shape, neutral_value(op, x.scalar_type()), x.options()),
          at::full(shape, kNowhere, x.options().dtype(at::kLong))};
}

std::vector<int64_t> shape_without(const at::Tensor& x, int64_t dim, bool keepdim) {
  std::vector<int64_t> shape = x.sizes().vec();
  if (keepdim) {
    shape[dim] = 1;
  } else {
    shape.erase(shape.begin() + dim);
  }
  return shape;
}

Extreme local_extreme(const at::Tensor& x, int64_t dim, bool keepdim, int64_t offset, ReduceOp op) {
  if (x.size(dim) == 0) return nothing(x, shape_without(x, dim, keepdim), op);
  auto [values, indices] = op == ReduceOp::kMax ? at::max(x, dim, keepdim) : at::min(x, dim, keepdim);
  return {values, indices.add_(offset)};
}

// A block's elements come in the same order as in the whole tensor, so the first of a block is the
// first of the whole.
Extreme local_extreme_of_all(const at::Tensor& x, const ShardSpec& spec, ReduceOp op) {
  if (x.numel() == 0) return nothing(x, {}, op);
  auto [values, indices] = local_extreme(x.flatten(), 0, false, 0, op);
  at::Tensor rest = indices, index = at::zeros_like(indices);
  int64_t stride = 1;
  for (int64_t d = spec.ndim() - 1; d >= 0; --d) {
    index = index + (rest.remainder(x.size(d)) + spec.offsets()[d]) * stride;
    rest = rest.floor_divide(x.size(d));
    stride *= spec.global_shape()[d];
  }
  return {values, index};
}

// max and min along one dim: values and where they stand.
template <ReduceOp kOp>
std::optional<Plan> plan_with_indices(const OpCall& call) {
  const SpecPtr from = without_partial(call.spec("self"));
  const bool keepdim = keeps_dims(call);
  const auto dims = reduced_dims(call, from->ndim());
  const SpecPtr result = reduced_spec(from, dims, keepdim);
  Plan plan{.inputs = {from}, .outputs = {result, result}};
  const CutGroup group(from, dims);
  if (!blocks_may_be_empty(from, dims)) return plan;
  plan.run = [=, dim = dims[0], at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor x = call.tensor(at_self);
    const Extreme extreme = combine(group, local_extreme(x, dim, keepdim, from->offsets()[dim], kOp), kOp);
    call.give(extreme.values, extreme.indices);
  };
  return plan;
}

// argmax and argmin, along one dim or of the flattened tensor.
template <ReduceOp kOp>
std::optional<Plan> plan_arg(const OpCall& call) {
  const SpecPtr from = without_partial(call.spec("self"));
  const bool keepdim = keeps_dims(call), all = !call.given("dim");
  const auto dims = reduced_dims(call, from->ndim());
  Plan plan{.inputs = {from}, .outputs = {reduced_spec(from, dims, keepdim)}};
  const CutGroup group(from, dims);
  if (!blocks_may_be_empty(from, dims)) return plan;
  plan.run = [=, at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor x = call.tensor(at_self);
    Extreme extreme =
        all ? local_extreme_of_all(x, *from, kOp) : local_extreme(x, dims[0], keepdim, from->offsets()[dims[0]], kOp);
    extreme = combine(group, std::move(extreme), kOp);
    if (all && keepdim) extreme.indices = extreme.indices.reshape(std::vector<int64_t>(x.dim(), 1));
    call.give(extreme.indices);
  };
  return plan;
}

std::optional<Plan> plan_aminmax(const OpCall& call) {
  const SpecPtr from = without_partial(call.spec("self"));
  const bool keepdim = keeps_dims(call);
  const auto dims = reduced_dims(call, from->ndim());
  Plan plan{.inputs = {from},
            .outputs = {reduced_spec(from, dims, keepdim, ReduceOp::kMin),
                        reduced_spec(from, dims, keepdim, ReduceOp::kMax)}};
  if (blocks_may_be_empty(from, dims)) {
    plan.run = run_or_neutral(call, dims, keepdim, {ReduceOp::kMin, ReduceOp::kMax});
  }
  return plan;
}

constexpr auto* kExtremesSource = "PyTorch max, argmax, aminmax; ties go to the first, NaN wins";
constexpr auto* kExtremesSupports = "any cut; indices are global";

const Register extremes_rules{
    {.op = "aten::max.dim",
     .plan = plan_with_indices<ReduceOp::kMax>,
     .source = kExtremesSource,
     .supports = kExtremesSupports,
     .traffic = Traffic::kAllReduce},
    {.op = "aten::min.dim",
     .plan = plan_with_indices<ReduceOp::kMin>,
     .source = kExtremesSource,
     .supports = kExtremesSupports,
     .traffic = Traffic::kAllReduce},
    {.op = "aten::argmax",
     .plan = plan_arg<ReduceOp::kMax>,
     .source = kExtremesSource,
     .supports = kExtremesSupports,
     .traffic = Traffic::kAllReduce},
    {.op = "aten::argmin",
     .plan = plan_arg<ReduceOp::kMin>,
     .source = kExtremesSource,
     .supports = kExtremesSupports,
     .traffic = Traffic::kAllReduce},
    {.op = "aten::aminmax",
     .plan = plan_aminmax,
     .source = kExtremesSource,
     .supports = "any cut; Partial(min), Partial(max)"},
};

}  // namespace
}  // namespace moonhalo
