// SPDX-License-Identifier: Apache-2.0
// Factories that take a ShardTensor as their model: *_like and new_*. No value is read, so nothing moves.
#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

std::optional<Plan> plan_like(const OpCall& call) {
  call.output_shapes();
  return unary_plan(call, nullptr, {without_partial(call.spec("self"))});
}

// A tensor of the model's shape is cut as the model is; of as many dims, at the same places of the domain where the
// extents differ (gradients of halved, padded or indexed dims start as such zeros), unless there are fewer rows than
// blocks; any other is replicated.
SpecPtr like_where_it_fits(const SpecPtr& self, at::IntArrayRef shape) {
  Layout layout(self->mesh(), shape.vec());
  if (static_cast<int64_t>(shape.size()) != self->ndim()) return intern(std::move(layout));
  for (int64_t d = 0; d < self->ndim(); ++d) {
    const Cut& cut = self->cut(d);
    const bool equal = shape[d] == self->global_shape()[d];
    if (equal) layout.cuts[d] = cut;
    if (!equal && cut && shape[d] >= static_cast<int64_t>(cut.sizes.size()))
      layout.cuts[d] = {cut.mesh_dims, proportional_sizes(cut.sizes, shape[d])};
  }
  return intern(std::move(layout));
}

std::optional<Plan> plan_new(const OpCall& call) {
  call.output_shapes();
  const auto shape = call.integers("size");
  const SpecPtr result = like_where_it_fits(call.spec("self"), shape);
  Plan plan = unary_plan(call, nullptr, {result});
  plan.argument_overrides = {{call.arg("size"), int_list(result->local_shape())}};
  return plan;
}

std::optional<Plan> plan_new_empty_strided(const OpCall& call) {
  call.output_shapes();
  const auto shape = call.integers("size"), stride = call.integers("stride");
  const SpecPtr result = like_where_it_fits(call.spec("self"), shape);
  // Dense strides of the block, its dims ordered in memory as the strides asked for order them.
  std::vector<int64_t> order = all_dims(result->ndim()), local_stride(shape.size(), 1);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return stride[a] > stride[b]; });
  int64_t next = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    local_stride[*d] = next;
    next *= std::max<int64_t>(1, result->local_shape()[*d]);
  }
  Plan plan = unary_plan(call, nullptr, {result});
  plan.argument_overrides = {{call.arg("size"), int_list(result->local_shape())},
                             {call.arg("stride"), int_list(local_stride)}};
  return plan;
}

const char* const kLike = "any cut, which the result keeps";
const char* const kNew = "any cut, which the result keeps at the same places of the domain";

const Register factory_rules{
    {.op = {"aten::empty_like", "aten::zeros_like", "aten::ones_like", "aten::full_like"},
     .plan = plan_like,
     .supports = kLike},
    {.op = {"aten::new_empty", "aten::new_zeros", "aten::new_ones", "aten::new_full"},
     .plan = plan_new,
     .supports = kNew},
    {.op = "aten::new_empty_strided", .plan = plan_new_empty_strided, .supports = kNew},
};

}  // namespace
}  // namespace moonhalo
