// SPDX-License-Identifier: Apache-2.0
// Indexing by tensors: x[a, :, b] and x[a, :, b] = v.
//
// An indexed dim that is cut need not be gathered: each rank fills in the rows that it owns and zeros elsewhere, and
// the result is Partial; whichever moves less is taken. Writing, each rank writes the rows that it owns.
#include <ATen/ATen.h>

#include <algorithm>
#include <memory>

#include "moonhalo/engine/dispatch/axes.h"
#include "moonhalo/engine/exchange/redistribution.h"
#include "moonhalo/ops/indexing/masks.h"
#include "moonhalo/ops/support/local_rows.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

using Indices = c10::List<std::optional<at::Tensor>>;

/// Says what the index tensors do to the dims: x of [a, b, c, d] indexed in dims 1 and 2 by tensors that broadcast to
/// [i, j] gives [a, i, j, d]; in dims 0 and 2, which are not neighbours, [i, j, b, d].
struct Pattern {
  std::vector<int64_t> indexed;      // dims of x
  std::vector<int64_t> others;       // the other dims, in order
  std::vector<int64_t> index_shape;  // broadcast
  int64_t place = 0;                 // of index_shape among the result's dims
  bool masks = false;

  std::vector<int64_t> result_shape(at::IntArrayRef x) const {
    std::vector<int64_t> shape;
    for (const int64_t d : others) shape.push_back(x[d]);
    shape.insert(shape.begin() + place, index_shape.begin(), index_shape.end());
    return shape;
  }
};

Pattern pattern_of(const OpCall& call) {
  const SpecPtr& self = call.spec("self");
  const Arg list = call.arg("indices");
  Pattern pattern;
  for (const TensorArgument& slot : call.slots()) {
    if (slot.arg != list || !slot.spec) continue;
    pattern.masks |= is_mask(slot);
    pattern.indexed.push_back(slot.item);
    const auto& sizes = slot.spec->global_shape();
    auto& shape = pattern.index_shape;
    if (sizes.size() > shape.size()) shape.insert(shape.begin(), sizes.size() - shape.size(), 1);
    for (size_t d = 0; d < sizes.size(); ++d) {
      int64_t& extent = shape[shape.size() - sizes.size() + d];
      if (extent == 1) extent = sizes[d];
    }
  }
  for (int64_t d = 0; d < self->ndim(); ++d) {
    if (std::find(pattern.indexed.begin(), pattern.indexed.end(), d) == pattern.indexed.end())
      pattern.others.push_back(d);
  }
  const auto& indexed = pattern.indexed;
  const bool neighbours =
      !indexed.empty() && indexed.back() - indexed.front() + 1 == static_cast<int64_t>(indexed.size());
  pattern.place = neighbours ? indexed.front() : 0;
  return pattern;
}

// The index tensors in local rows, broadcast to one shape, and which entries this rank owns in every cut dim. Indices
// of a tensor on a device may lie on the host.
struct LocalIndices {
  std::vector<at::Tensor> rows;
  at::Tensor valid;
};

LocalIndices localize(const Indices& indices, const Pattern& pattern, const ShardSpec& self, c10::Device device,
                      const char* op) {
  LocalIndices local;
  std::vector<at::Tensor> valid;
  for (const int64_t d : pattern.indexed) {
    const at::Tensor index = indices.get(d)->to(device);
    if (!self.is_cut(d)) {
      local.rows.push_back(index);
      continue;
    }
    OwnedRows owned = owned_rows(index, self, d, true, op);
    local.rows.push_back(std::move(owned.index));
    valid.push_back(std::move(owned.valid));
  }
  local.rows = at::broadcast_tensors(local.rows);
  local.valid = valid[0];
  for (size_t i = 1; i < valid.size(); ++i) local.valid = local.valid.logical_and(valid[i]);
  local.valid = local.valid.expand(local.rows[0].sizes());
  return local;
}

bool cuts_indexed(const ShardSpec& self, const Pattern& pattern) {
  return std::any_of(pattern.indexed.begin(), pattern.indexed.end(), [&](int64_t d) { return self.is_cut(d); });
}

Plan gathered(const OpCall& call, std::vector<SpecPtr> outputs) {
  Plan plan;
  for (const TensorArgument& slot : call.slots()) {
    plan.inputs.push_back(slot.spec ? replicated(call.mesh(), slot.spec->global_shape()) : nullptr);
  }
  plan.outputs = std::move(outputs);
  return plan;
}

std::optional<Plan> plan_index(const OpCall& call) {
  const Pattern pattern = pattern_of(call);
  const SpecPtr& self = call.spec("self");
  if (pattern.masks) {  // how many rows come out depends on the values
    const auto mask = single_mask(call);
    return mask ? plan_read_mask(call, *mask) : gathered(call, {});
  }
  const auto shape = *call.output_shapes()[0];
  Axes axes;
  const int index_axes = static_cast<int>(self->ndim());
  const auto index_ndim = static_cast<int>(pattern.index_shape.size());
  axes.kinds.assign(self->ndim() + index_ndim, AxisKind::kKeep);
  const bool sums = call.tensor("self").dtype != at::kBool;
  const Arg source = call.arg("self");
  for (const int64_t d : pattern.indexed) axes.kinds[d] = sums ? AxisKind::kReduce : AxisKind::kUncut;
  for (const TensorArgument& slot : call.slots()) {
    std::vector<int> dims;
    if (slot.spec && slot.arg == source) {
      for (int d = 0; d < index_axes; ++d) dims.push_back(d);
    } else if (slot.spec) {
      const auto& sizes = slot.spec->global_shape();
      const int first = index_ndim - static_cast<int>(sizes.size());
      for (int d = 0; d < static_cast<int>(sizes.size()); ++d) {
        dims.push_back(sizes[d] == pattern.index_shape[first + d] ? index_axes + first + d : -1);
      }
    }
    axes.inputs.push_back(std::move(dims));
    axes.linear.push_back(slot.arg == source ? PartialUse::kOneFactor : PartialUse::kResolve);
  }
  std::vector<int> output(pattern.others.begin(), pattern.others.end());
  for (int d = 0; d < index_ndim; ++d) output.insert(output.begin() + pattern.place + d, index_axes + d);
  axes.outputs = {std::move(output)};
  axes.output_shapes = {shape};
  Plan plan = solve(call, axes);
  const SpecPtr held = plan.inputs[0];
  if (!cuts_indexed(*held, pattern)) return plan;
  plan.run = [held, pattern, shape = plan.outputs[0]->local_shape(), at_self = call.arg("self"),
              at_indices = call.arg("indices")](LocalCall& call) {
    const at::Tensor self = call.tensor(at_self);
    Indices indices = call.value(at_indices).to<Indices>().copy();
    const LocalIndices local = localize(indices, pattern, *held, self.device(), "index");
    if (self.numel() == 0) return call.give(at::zeros(shape, self.options()));
    for (size_t i = 0; i < pattern.indexed.size(); ++i) indices.set(pattern.indexed[i], local.rows[i]);
    at::Tensor missing = local.valid.logical_not();
    for (size_t d = pattern.place; d < pattern.others.size(); ++d) missing = missing.unsqueeze(-1);
    call.give(self.index(indices).masked_fill_(missing, 0));
  };
  return plan;
}

// The gradient of x[a, b] whose indices are cut is added where it lies: the sums of its ranks are addends, which are
// less than the values and indices where these are many (index_dim.cpp does so for index_add).
std::optional<Plan> plan_gradient_addends(const OpCall& call, const Pattern& pattern, const SpecPtr& self) {
  if (call.name() != "aten::_index_put_impl_" || !call.flag("accumulate")) return std::nullopt;
  const SpecPtr& values = call.spec("values");
  const auto index_ndim = static_cast<int64_t>(pattern.index_shape.size());
  const int64_t least = self->global_numel() * (cuts_indexed(*self, pattern) ? 1 : 2);
  if (values->global_shape() != pattern.result_shape(self->global_shape()) || values->global_numel() < least)
    return std::nullopt;
  Layout sum = without_cuts(self, pattern.indexed)->layout();
  Layout entries(call.mesh(), values->global_shape()), places(call.mesh(), pattern.index_shape);
  for (size_t i = 0; i < pattern.others.size(); ++i) {
    const auto d = static_cast<int64_t>(i);
    entries.cuts[d < pattern.place ? d : d + index_ndim] = sum.cuts[pattern.others[i]];
  }
  bool any = false;
  for (int64_t d = 0; d < index_ndim; ++d) {
    entries.cuts[pattern.place + d] = places.cuts[d] = values->cut(pattern.place + d);
    for (const int64_t m : places.cuts[d].mesh_dims) {
      if (sum.uses(m)) return std::nullopt;
      sum.partials[m] = ReduceOp::kSum;
      any = true;
    }
  }
  Plan plan = unary_plan(call, self, {self});
  for (size_t s = 1; s < call.slots().size(); ++s) {
    const TensorArgument& slot = call.slots()[s];
    if (!slot.spec || slot.arg == call.arg("values")) continue;
    if (slot.spec->global_shape() != pattern.index_shape || !slot.spec->has_cut()) return std::nullopt;
    plan.inputs[s] = intern(places);
  }
  if (!any) return std::nullopt;
  plan.inputs[call.slot("values")] = intern(std::move(entries));
  const SpecPtr addends = intern(std::move(sum));
  plan.run = [addends, move = std::make_shared<const Redistribution>(addends, self),
              at_self = call.arg("self")](LocalCall& call) {
    at::Tensor target = call.tensor(at_self);
    call.value(at_self) = at::zeros(addends->local_shape(), target.options());
    call.run();
    call.give(target.add_(move->apply(call.result())));
  };
  return plan;
}

std::optional<Plan> plan_index_put(const OpCall& call) {
  const Pattern pattern = pattern_of(call);
  const SpecPtr self = without_partial(call.spec("self"));
  if (pattern.masks) {
    if (const auto mask = single_mask(call)) return plan_write_mask(call, *mask);
    return self->has_cut() ? std::nullopt : std::optional(gathered(call, {self}));
  }
  if (auto plan = plan_gradient_addends(call, pattern, self)) return plan;
  Plan plan = unary_plan(call, self, {self});
  for (size_t s = 1; s < call.slots().size(); ++s) {
    if (call.slots()[s].spec) plan.inputs[s] = replicated(call.mesh(), call.slots()[s].spec->global_shape());
  }
  // Values take the cut of the dims that are not indexed.
  const int values = call.slot("values");
  const auto& sizes = call.slots()[values].spec->global_shape();
  const auto result = pattern.result_shape(self->global_shape());
  std::vector<int64_t> source(sizes.size(), -1);
  const int64_t first = static_cast<int64_t>(result.size()) - static_cast<int64_t>(sizes.size());
  for (size_t i = 0; i < pattern.others.size(); ++i) {
    const int64_t at =
        static_cast<int64_t>(i) + (static_cast<int64_t>(i) < pattern.place ? 0 : pattern.index_shape.size());
    if (at >= first && sizes[at - first] == result[at]) source[at - first] = pattern.others[i];
  }
  plan.inputs[values] = with_cuts_of(self, sizes, source);
  if (!cuts_indexed(*self, pattern)) return plan;
  plan.run = [self, pattern, in_place = call.writes("self"), at_self = call.arg("self"),
              at_indices = call.arg("indices"), at_values = call.arg("values"),
              at_accumulate = call.arg("accumulate")](LocalCall& call) {
    at::Tensor target = call.tensor(at_self);
    if (!in_place) target = target.clone();
    const LocalIndices local =
        localize(call.value(at_indices).to<Indices>(), pattern, *self, target.device(), "index_put");
    const at::Tensor positions = local.valid.flatten().nonzero().select(1, 0);
    if (positions.numel() > 0 && target.numel() > 0) {
      Indices rows;
      for (const at::Tensor& row : local.rows) rows.push_back(row.flatten().index_select(0, positions));
      std::vector<int64_t> order = pattern.indexed;
      order.insert(order.end(), pattern.others.begin(), pattern.others.end());
      const auto index_ndim = static_cast<int64_t>(pattern.index_shape.size());
      const at::Tensor given = call.tensor(at_values).to(target.device());  // a single number may lie on the host
      at::Tensor values = given.expand(pattern.result_shape(target.sizes()));
      std::vector<int64_t> values_order;
      for (int64_t d = 0; d < index_ndim; ++d) values_order.push_back(pattern.place + d);
      for (int64_t d = 0; d < values.dim(); ++d) {
        if (d < pattern.place || d >= pattern.place + index_ndim) values_order.push_back(d);
      }
      values = values.permute(values_order);
      values = index_ndim == 0 ? values.unsqueeze(0) : values.flatten(0, index_ndim - 1);
      target.permute(order).index_put_(rows, values.index_select(0, positions), call.value(at_accumulate).toBool());
    }
    call.give(std::move(target));
  };
  return plan;
}

const char* const kIndexGet = "any cut; a mask beside other indices gathers";
const char* const kIndexPut = "any cut; each rank writes the rows it owns; a mask alone, not beside other indices";

const Register index_rules{
    {.op = {"aten::index.Tensor", "aten::_unsafe_index.Tensor"},
     .plan = plan_index,
     .supports = kIndexGet,
     .traffic = Traffic::kDataDependent},
    {.op = {"aten::index_put_", "aten::index_put", "aten::_index_put_impl_", "aten::_unsafe_index_put"},
     .plan = plan_index_put,
     .supports = kIndexPut,
     .traffic = Traffic::kDataDependent | Traffic::kRedistribute},
};

}  // namespace
}  // namespace moonhalo
