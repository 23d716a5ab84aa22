// SPDX-License-Identifier: Apache-2.0
// take and put: elements by their place in the flattened tensor. Each rank reads or writes those that it owns; what is
// read stays a sum where that moves less than the tensor itself.
#include <ATen/ATen.h>

#include "moonhalo/engine/exchange/redistribution.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

/// Places in the flattened global tensor seen from one rank's block.
struct OwnedElements {
  at::Tensor index;  ///< places in the flattened block; 0 where the element is another rank's
  at::Tensor valid;  ///< bool: the element is in this block
};

OwnedElements owned_elements(const at::Tensor& index, const ShardSpec& spec, const std::string& op) {
  const int64_t numel = spec.global_numel();
  if (index.numel() > 0) {
    const int64_t low = index.min().item<int64_t>(), high = index.max().item<int64_t>();
    TORCH_CHECK_INDEX(low >= -numel && high < numel, op, ": index ", high < numel ? low : high,
                      " is out of bounds for a tensor of ", numel, " elements\n  have  ", spec.to_string());
  }
  at::Tensor rest = index.to(at::kLong);
  rest = at::where(rest.lt(0), rest + numel, rest);
  OwnedElements owned{at::zeros_like(rest), at::ones_like(rest, at::kBool)};
  int64_t stride = 1;
  for (int64_t d = spec.ndim() - 1; d >= 0; --d) {
    const int64_t extent = std::max<int64_t>(spec.global_shape()[d], 1), rows = spec.local_shape()[d];
    const at::Tensor row = rest.remainder(extent) - spec.offsets()[d];
    owned.valid.logical_and_(row.ge(0)).logical_and_(row.lt(rows));
    owned.index.add_(row, stride);
    rest = rest.floor_divide(extent);
    stride *= rows;
  }
  owned.index.masked_fill_(owned.valid.logical_not(), 0);
  return owned;
}

std::optional<Plan> plan_take(const OpCall& call) {
  const SpecPtr self = resolve_nonlinear(call.spec("self"));
  const SpecPtr index = without_partial(call.spec("index"));
  // Either the tensor comes to every rank, or the index does, and the elements found are summed up.
  const SpecPtr whole = without_cuts(self, all_dims(self->ndim()));
  Layout taken(call.mesh(), index->global_shape());
  taken.partials = self->layout().partials;
  for (int64_t d = 0; d < self->ndim(); ++d) {
    for (const int64_t m : self->cut(d).mesh_dims) taken.partials[m] = ReduceOp::kSum;
  }
  const SpecPtr sums = intern(taken);
  const double gathering = redistribution_cost(*self, *whole);
  const double summing = redistribution_cost(*index, *replicated(call.mesh(), index->global_shape())) +
                         redistribution_cost(*sums, *without_partial(sums));
  const SpecPtr everywhere = replicated(call.mesh(), index->global_shape());
  Plan plan;
  if (!self->has_cut() || call.tensor("self").dtype == at::kBool || gathering < summing) {
    plan.inputs = {without_partial(whole), index};
    plan.outputs = {index};
    return plan;
  }
  plan.inputs = {self, everywhere};
  plan.outputs = {sums};
  plan.run = [self, at_self = call.arg("self"), at_index = call.arg("index")](LocalCall& call) {
    const at::Tensor local = call.tensor(at_self), index = call.tensor(at_index);
    const OwnedElements owned = owned_elements(index, *self, "take");
    if (local.numel() == 0) return call.give(at::zeros(index.sizes(), local.options()));
    call.give(local.take(owned.index).masked_fill_(owned.valid.logical_not(), 0));
  };
  return plan;
}

std::optional<Plan> plan_put(const OpCall& call) {
  const SpecPtr self = without_partial(call.spec("self"));
  const int index = call.slot("index"), source = call.slot("source");
  const int64_t places = call.slots()[index].spec->global_numel(), values = call.slots()[source].spec->global_numel();
  TORCH_CHECK_VALUE(places == values, call.name(), ": ", values, " values for ", places, " places\n  have  ",
                    call.describe());
  Plan plan = unary_plan(call, self, {self});
  for (const int s : {index, source}) plan.inputs[s] = replicated(call.mesh(), call.slots()[s].spec->global_shape());
  if (!self->has_cut()) return plan;
  plan.run = [self, in_place = call.writes("self"), at_self = call.arg("self"), at_index = call.arg("index"),
              at_source = call.arg("source"), at_accumulate = call.arg("accumulate")](LocalCall& call) {
    at::Tensor target = call.tensor(at_self);
    if (!in_place) target = target.clone(at::MemoryFormat::Contiguous);
    const OwnedElements owned = owned_elements(call.tensor(at_index).flatten(), *self, "put");
    const at::Tensor positions = owned.valid.nonzero().select(1, 0);
    if (positions.numel() > 0) {
      target.put_(owned.index.index_select(0, positions), call.tensor(at_source).flatten().index_select(0, positions),
                  call.value(at_accumulate).toBool());
    }
    call.give(std::move(target));
  };
  return plan;
}

const Register take_rules{
    {.op = "aten::take",
     .plan = plan_take,
     .supports = "any cut; the elements found are summed up, or the tensor is gathered if that moves less"},
    {.op = {"aten::put", "aten::put_"}, .plan = plan_put, .supports = "any cut; each rank writes what it owns"},
};

}  // namespace
}  // namespace moonhalo
