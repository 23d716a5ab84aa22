// SPDX-License-Identifier: Apache-2.0
// Indexing by tensors: x[a, :, b] and x[a, :, b] = v.
//
// An indexed dim that is cut need not be gathered: rows that are read are sent to who asks for them, and sums of what
// is added are sent back (picked_rows.h). Else each rank fills in the rows that it owns and zeros elsewhere, and the
// result is Partial, if that moves less. Writing, each rank writes the rows that it owns.
#include <ATen/ATen.h>

#include <algorithm>
#include <memory>

#include "moonhalo/engine/dispatch/axes.h"
#include "moonhalo/engine/exchange/redistribution.h"
#include "moonhalo/ops/indexing/masks.h"
#include "moonhalo/ops/support/local_rows.h"
#include "moonhalo/ops/support/picked_rows.h"
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

// The index tensors in local rows, broadcast to one shape, and which entries this rank owns in every cut dim.
// Indices of a tensor on a device may be on the host.
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

// Rows are picked by one index tensor or several, which are broadcast to one shape.
struct PickedByIndices {
  Pattern pattern;
  PickedRows rows;
  std::vector<int64_t> shape;  // of this rank's entries, as they stand in the result
  Arg at_indices;

  /// The index tensors that the local call was given, of one shape.
  std::vector<at::Tensor> indices(LocalCall& call, c10::Device device) const {
    const auto list = call.value(at_indices).to<Indices>();
    std::vector<at::Tensor> given;
    for (const int64_t d : pattern.indexed) given.push_back(list.get(d)->to(device));
    return at::broadcast_tensors(given);
  }
  PickedRoutePtr route(LocalCall& call, c10::Device device, const char* op) const {
    const bool lone = pattern.indexed.size() == 1;
    return route_of(rows, indices(call, device),
                    lone ? call.given(at_indices, static_cast<int>(pattern.indexed[0])) : at::Tensor(), op);
  }
  bool lone() const { return pattern.indexed.size() == 1; }
  /// The table with its indexed dims as one, which is dim `row_dim()`; a view where that is possible.
  at::Tensor table(const at::Tensor& block) const {
    if (lone()) return block;
    std::vector<int64_t> order = pattern.indexed;
    order.insert(order.end(), pattern.others.begin(), pattern.others.end());
    return block.permute(order).flatten(0, static_cast<int64_t>(pattern.indexed.size()) - 1);
  }
  int64_t row_dim() const { return lone() ? pattern.place : 0; }
  int64_t index_ndim() const { return static_cast<int64_t>(pattern.index_shape.size()); }
  /// The dims of the entries in the result, first if the table's rows are.
  std::vector<int64_t> entry_order() const {
    std::vector<int64_t> order = all_dims(static_cast<int64_t>(shape.size()));
    if (!lone()) {
      const auto first = order.begin();
      std::rotate(first, first + pattern.place, first + pattern.place + index_ndim());
    }
    return order;
  }
  /// Entries as rows of the table, from the shape of the result, and back.
  at::Tensor as_rows(const at::Tensor& entries) const {
    const int64_t at = row_dim();
    return entries.permute(entry_order()).flatten(at, at + index_ndim() - 1);
  }
  at::Tensor as_result(const at::Tensor& rows) const {
    const auto order = entry_order();
    std::vector<int64_t> moved, back(order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      moved.push_back(shape[order[i]]);
      back[order[i]] = static_cast<int64_t>(i);
    }
    return rows.view(moved).permute(back).contiguous();
  }
};

// The result's cuts: those of the dims that are not indexed, and of the entries.
SpecPtr result_spec(const Pattern& pattern, const PickedRows& rows) {
  Layout layout(rows.table->mesh(), pattern.result_shape(rows.table->global_shape()));
  std::vector<Cut> cuts;
  for (const int64_t d : pattern.others) cuts.push_back(rows.table->cut(d));
  const auto& entries = rows.entries->layout().cuts;
  cuts.insert(cuts.begin() + pattern.place, entries.begin(), entries.end());
  layout.cuts = std::move(cuts);
  layout.partials = rows.table->layout().partials;
  return intern(std::move(layout));
}

// A tensor that is broadcast to one of spec `whole` takes its cuts where the extents are equal.
SpecPtr broadcast_spec(const SpecPtr& whole, at::IntArrayRef shape) {
  const int64_t ndim = static_cast<int64_t>(shape.size()), first = whole->ndim() - ndim;
  std::vector<int64_t> source(ndim, -1);
  for (int64_t d = 0; d < ndim; ++d) {
    if (first + d >= 0 && shape[d] == whole->global_shape()[first + d]) source[d] = first + d;
  }
  return without_partial(with_cuts_of(whole, shape, source));
}

std::optional<PickedByIndices> picked_by_indices(const OpCall& call, const Pattern& pattern, const SpecPtr& self,
                                                 UncutIndex uncut, const SpecPtr& entries = {}) {
  SpecPtr index = replicated(call.mesh(), pattern.index_shape);
  for (const TensorArgument& slot : call.slots()) {
    if (slot.arg != call.arg("indices") || !slot.spec || !slot.spec->has_cut() || index->has_cut()) continue;
    if (slot.spec->global_shape() != pattern.index_shape) return std::nullopt;
    index = without_partial(slot.spec);
  }
  auto rows = picked_rows(self, pattern.indexed, index, uncut, entries);
  if (!rows) return std::nullopt;
  rows->wrap = true;
  std::vector<int64_t> shape = result_spec(pattern, *rows)->local_shape();
  return PickedByIndices{pattern, std::move(*rows), std::move(shape), call.arg("indices")};
}

void check_index_types(const OpCall& call, const PickedRows& rows, Plan& plan) {
  for (size_t s = 0; s < call.slots().size(); ++s) {
    const TensorArgument& slot = call.slots()[s];
    if (slot.arg == call.arg("indices") && slot.spec)
      plan.inputs[s] = broadcast_spec(rows.index(), slot.spec->global_shape());
  }
  plan.asks_for_tensors = true;
}

std::optional<Plan> plan_picked_index(const OpCall& call, const Pattern& pattern) {
  const auto picked = picked_by_indices(call, pattern, call.spec("self"), UncutIndex::kShare);
  if (!picked) return std::nullopt;
  Plan plan = unary_plan(call, picked->rows.table, {result_spec(pattern, picked->rows)});
  check_index_types(call, picked->rows, plan);
  plan.run = [picked = *picked, at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor self = call.tensor(at_self);
    const auto way = picked.route(call, self.device(), "index");
    call.give(picked.as_result(way->route.fetch(picked.table(self), picked.row_dim())));
  };
  return plan;
}

// Values that are added to rows of cut dims: each rank sums up what is for one row, and sends it there.
std::optional<Plan> plan_picked_put(const OpCall& call, const Pattern& pattern, const SpecPtr& self) {
  if (!call.flag("accumulate") || call.tensor("self").dtype == at::kBool || !cuts_indexed(*self, pattern))
    return std::nullopt;
  const SpecPtr& values = call.spec("values");
  const auto result = pattern.result_shape(self->global_shape());
  SpecPtr entries;
  if (values->global_shape() == result && values->has_cut()) {
    std::vector<int64_t> source;
    for (size_t d = 0; d < pattern.index_shape.size(); ++d) source.push_back(pattern.place + static_cast<int64_t>(d));
    entries = without_partial(with_cuts_of(values, pattern.index_shape, source));
  }
  const auto picked = picked_by_indices(call, pattern, self, UncutIndex::kOwn, entries);
  if (!picked) return std::nullopt;
  Plan plan = unary_plan(call, self, {self});
  check_index_types(call, picked->rows, plan);
  plan.inputs[call.slot("values")] = broadcast_spec(result_spec(pattern, picked->rows), values->global_shape());
  plan.run = [picked = *picked, to = RowSums(self, picked->rows, call.writes("self")), at_self = call.arg("self"),
              at_values = call.arg("values")](LocalCall& call) {
    const at::Tensor target = call.tensor(at_self), given = call.tensor(at_values).to(target.device());
    const auto way = picked.route(call, target.device(), "index_put");
    const at::Tensor sums = to.begin(target);
    const at::Tensor table = picked.table(sums);
    way->route.add(picked.as_rows(given.expand(picked.shape)).contiguous(), picked.row_dim(), 1, table);
    if (!table.is_alias_of(sums)) {
      std::vector<int64_t> order = picked.pattern.indexed;
      order.insert(order.end(), picked.pattern.others.begin(), picked.pattern.others.end());
      const at::Tensor permuted = sums.permute(order);
      permuted.copy_(table.view(permuted.sizes()));
    }
    call.give(to.end(target, sums));
  };
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
  if (auto plan = plan_picked_index(call, pattern)) return plan;
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

// The gradient of x[a, b] whose indices are cut is added where it is: the sums of its ranks are addends, which are
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
  if (auto plan = plan_picked_put(call, pattern, self)) return plan;
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
      const at::Tensor given = call.tensor(at_values).to(target.device());  // a single number may be on the host
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

const char* const kIndexGet = "any cut; rows that are asked for are sent; a mask beside other indices gathers";
const char* const kIndexPut =
    "any cut; each rank writes the rows it owns, sums of what is added are sent there; a mask alone, not beside other "
    "indices";

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
