// SPDX-License-Identifier: Apache-2.0
// Copies, fills, comparisons of whole tensors, and reading one number out.
#include <ATen/ATen.h>

#include <algorithm>

#include "moonhalo/engine/comm/device/device_communicators.h"
#include "moonhalo/engine/dispatch/axes.h"
#include "moonhalo/engine/sharding/mesh_device.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

std::optional<Plan> plan_clone(const OpCall& call) { return unary_plan(call, nullptr, {call.spec("self")}); }

// A cast of a sum is the sum of casts only between types that can hold the addends in the same way.
std::optional<Plan> plan_to_copy(const OpCall& call) {
  const SpecPtr& self = call.spec("self");
  if (call.given("device") && !call.mesh()->group().is_fake()) {
    const c10::Device to = call.value("device").toDevice();
    if (!to.is_meta()) check_stays(*self, to);
  }
  const at::ScalarType from = call.tensor("self").dtype;
  const at::ScalarType to = call.given("dtype") ? call.value("dtype").toScalarType() : from;
  const auto continuous = [](at::ScalarType type) { return at::isFloatingType(type) || at::isComplexType(type); };
  const SpecPtr required = from == to                           ? self
                           : continuous(from) && continuous(to) ? resolve_nonlinear(self)
                                                                : without_partial(self);
  return unary_plan(call, required, {required});
}

// The tensor that is written keeps its spec; the source is cut, gathered or moved to fit.
std::optional<Plan> plan_copy(const OpCall& call) {
  call.output_shapes();
  const SpecPtr self = without_partial(call.spec("self"));
  Axes axes = broadcast_axes(call);
  axes.fixed_output = 0;
  axes.fixed_spec = self;
  return solve(call, axes);
}

std::optional<Plan> plan_fill(const OpCall& call) {
  call.output_shapes();
  const SpecPtr self = without_partial(call.spec("self"));
  Plan plan = unary_plan(call, self, {self});
  for (size_t s = 1; s < call.slots().size(); ++s) plan.inputs[s] = without_partial(call.slots()[s].spec);
  return plan;
}

// The functional form reads no value at all.
std::optional<Plan> plan_filled(const OpCall& call) {
  Plan plan = unary_plan(call, nullptr, {without_partial(call.spec("self"))});
  for (size_t s = 1; s < call.slots().size(); ++s) plan.inputs[s] = without_partial(call.slots()[s].spec);
  return plan;
}

// Addends of zero are a zero: no need to sum up first.
std::optional<Plan> plan_zero(const OpCall& call) { return unary_plan(call, nullptr, {call.spec("self")}); }

std::optional<Plan> plan_item(const OpCall& call) {
  const SpecPtr& self = call.spec("self");
  TORCH_CHECK_VALUE(self->global_numel() == 1, "item: a tensor with ", self->global_numel(),
                    " elements is not one number\n  have  ", self->to_string(),
                    "\n  fix   select one element, or use full_tensor()");
  Plan plan = unary_plan(call, replicated(call.mesh(), self->global_shape()), {nullptr});
  plan.run = [mesh = call.mesh()](LocalCall& call) {
    call.run();
    check_arrived(mesh->group());
  };
  return plan;
}

// Every rank compares its blocks; they are equal (or close) where all ranks say so.
std::optional<Plan> plan_compare(const OpCall& call) {
  const SpecPtr self = without_partial(call.spec("self")), other = without_partial(call.spec("other"));
  Plan plan;
  plan.outputs = {nullptr};
  if (self->global_shape() != other->global_shape()) {
    if (call.name() != "aten::equal") return std::nullopt;  // allclose broadcasts
    plan.inputs = {self, other};
    plan.run = [](LocalCall& call) { call.give(false); };
    return plan;
  }
  const SpecPtr shared = self->has_cut() ? self : other;
  plan.inputs = {shared, shared};
  if (!shared->has_cut()) return plan;
  plan.run = [shared](LocalCall& call) {
    call.run();
    at::Tensor same = at::full({1}, call.values()[0].toBool() ? 1 : 0, at::dtype(at::kInt));
    for (int64_t d = 0; d < shared->ndim(); ++d) {
      for (const int64_t m : shared->cut(d).mesh_dims) shared->mesh()->group(m).all_reduce(same, ReduceOp::kMin);
    }
    call.give(same.item<int>() != 0);
  };
  return plan;
}

std::optional<Plan> plan_is_same_size(const OpCall& call) {
  const bool same = call.spec("self")->global_shape() == call.spec("other")->global_shape();
  Plan plan;
  plan.inputs.resize(call.slots().size());
  plan.outputs = {nullptr};
  plan.run = [same](LocalCall& call) { call.give(same); };
  return plan;
}

std::optional<Plan> refuse_new_storage(const OpCall& call) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, call.name().substr(std::string("aten::").size()),
                              ": a ShardTensor has no storage of its own to replace or resize\n  have  ",
                              call.describe(), "\n  fix   make a new tensor (new_empty, clone) and copy_ into it");
}

// LibTorch's composites resize what they write, mostly to the shape that it has.
std::optional<Plan> plan_resize(const OpCall& call) {
  const SpecPtr& self = call.spec("self");
  if (call.integers("size") != self->global_shape()) return refuse_new_storage(call);
  Plan plan = unary_plan(call, nullptr, {self});
  plan.run = [at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor same = call.tensor(at_self);
    call.give(same);
  };
  return plan;
}

const char* const kStays = "any cut, Partial kept";

const Register copy_rules{
    {.op = {"aten::clone", "aten::lift", "aten::lift_fresh", "aten::lift_fresh_copy"},
     .plan = plan_clone,
     .supports = kStays},
    {.op = "aten::_to_copy", .plan = plan_to_copy, .supports = "any cut; Partial kept between floating types"},
    {.op = "aten::copy_",
     .plan = plan_copy,
     .supports = "any cut on either side, plain tensors too; the written one keeps its cut"},
    {.op = "aten::fill_", .plan = plan_fill, .supports = "any cut"},
    {.op = "aten::fill", .plan = plan_filled, .supports = "any cut"},
    {.op = {"aten::zero", "aten::zero_"}, .plan = plan_zero, .supports = kStays},
    {.op = "aten::_local_scalar_dense",
     .plan = plan_item,
     .supports = "any placement; collective where it is cut or Partial"},
    {.op = "aten::equal", .plan = plan_compare, .supports = "any cut", .traffic = Traffic::kAllReduce},
    {.op = "aten::allclose",
     .plan = plan_compare,
     .supports = "any cut of tensors of one shape",
     .traffic = Traffic::kAllReduce},
    {.op = "aten::is_same_size", .plan = plan_is_same_size, .supports = "any cut"},
    {.op = {"aten::set_", "aten::resize_as_"}, .plan = refuse_new_storage, .supports = "refused"},
    {.op = "aten::resize_", .plan = plan_resize, .supports = "to the same shape; others are refused"},
};

}  // namespace
}  // namespace moonhalo
