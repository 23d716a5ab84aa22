// SPDX-License-Identifier: Apache-2.0
// Indexing along one dim: index_select, gather, index_add and its kin, scatter and its kin. Along a cut dim each rank
// reads or writes the rows that it owns; what is read becomes Partial when that moves less than the rows themselves.
#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>

#include <algorithm>
#include <memory>

#include "moonhalo/engine/dispatch/axes.h"
#include "moonhalo/engine/exchange/redistribution.h"
#include "moonhalo/ops/support/local_rows.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

// Axes of self first; `other[d]` is the axis that the index and the result have in dim d.
Axes reading_axes(const OpCall& call, int64_t dim, const std::vector<int>& index_dims, std::vector<int> output_dims,
                  std::vector<AxisKind> kinds, const std::vector<int64_t>& shape) {
  const SpecPtr& self = call.spec("self");
  Axes axes;
  axes.kinds = std::move(kinds);
  axes.kinds[dim] = call.tensor("self").dtype != at::kBool ? AxisKind::kReduce : AxisKind::kUncut;
  std::vector<int> self_dims;
  for (int d = 0; d < static_cast<int>(self->ndim()); ++d) self_dims.push_back(d);
  axes.inputs = {std::move(self_dims), index_dims};
  axes.linear = {PartialUse::kOneFactor, PartialUse::kResolve};
  axes.outputs = {std::move(output_dims)};
  axes.output_shapes = {shape};
  return axes;
}

std::optional<Plan> plan_index_select(const OpCall& call) {
  const SpecPtr &self = call.spec("self"), &index = call.spec("index");
  const int64_t dim = call.dim("dim", self->ndim());
  if (self->ndim() == 0 || index->ndim() > 1) return std::nullopt;
  std::vector<int64_t> shape = self->global_shape();
  shape[dim] = index->global_numel();
  const int chosen = static_cast<int>(self->ndim());
  std::vector<int> output_dims;
  for (int d = 0; d < chosen; ++d) output_dims.push_back(d);
  output_dims[dim] = index->ndim() == 1 ? chosen : -1;
  const std::vector<int> index_dims(index->ndim(), chosen);
  Plan plan = solve(call, reading_axes(call, dim, index_dims, std::move(output_dims),
                                       std::vector<AxisKind>(chosen + 1, AxisKind::kKeep), shape));
  const SpecPtr held = plan.inputs[0];
  if (!held->is_cut(dim)) return plan;
  plan.run = [held, dim, shape = plan.outputs[0]->local_shape(), at_self = call.arg("self"),
              at_index = call.arg("index")](LocalCall& call) {
    const at::Tensor self = call.tensor(at_self);
    const at::Tensor index = call.tensor(at_index).flatten();
    const OwnedRows owned = owned_rows(index, *held, dim, false, "index_select");
    if (self.size(dim) == 0) return call.give(at::zeros(shape, self.options()));
    std::vector<int64_t> along(self.dim(), 1);
    along[dim] = index.numel();
    call.give(self.index_select(dim, owned.index).masked_fill_(owned.valid.logical_not().view(along), 0));
  };
  return plan;
}

// A tensor with `rows` rows of a dim that is cut in blocks of `sizes`, row i beside row i: the blocks beyond its end
// are empty. What a tensor has more than `used`, of which nothing is read or written, the last block holds.
std::vector<int64_t> beside(std::vector<int64_t> sizes, int64_t used, int64_t rows) {
  int64_t row = 0;
  for (int64_t& size : sizes) {
    size = std::clamp<int64_t>(used - row, 0, size);
    row += size;
  }
  sizes.back() += rows - used;
  return sizes;
}

// An index that is shorter than self in other dims goes with the first rows of these; blocks need not move for that.
std::optional<Plan> plan_short_gather(const OpCall& call, int64_t dim) {
  const SpecPtr self = resolve_nonlinear(call.spec("self"));
  const SpecPtr& index = call.spec("index");
  bool shorter = false;
  Layout wanted(call.mesh(), index->global_shape());
  for (int64_t d = 0; d < self->ndim(); ++d) {
    if (d == dim || !self->is_cut(d)) continue;
    const int64_t rows = index->global_shape()[d];
    shorter |= rows != self->global_shape()[d];
    wanted.cuts[d] = {self->cut(d).mesh_dims, beside(self->cut(d).sizes, rows, rows)};
  }
  if (!shorter) return std::nullopt;
  const SpecPtr held = without_cuts(self, {dim});
  Layout result = wanted;
  result.partials = held->layout().partials;
  Plan plan = unary_plan(call, held, {intern(std::move(result))});
  plan.inputs[call.slot("index")] = intern(std::move(wanted));
  return plan;
}

std::optional<Plan> plan_gather(const OpCall& call) {
  const SpecPtr &self = call.spec("self"), &index = call.spec("index");
  if (self->ndim() == 0 || index->ndim() != self->ndim()) return std::nullopt;
  const auto shape = *call.output_shapes()[0];
  const int64_t dim = call.dim("dim", self->ndim());
  if (auto plan = plan_short_gather(call, dim)) return plan;
  const int ndim = static_cast<int>(self->ndim());
  // The index may be shorter than self in other dims; its rows then are not those of self's blocks.
  std::vector<AxisKind> kinds(2 * ndim, AxisKind::kKeep);
  std::vector<int> index_dims;
  for (int d = 0; d < ndim; ++d) {
    const bool together = d != dim && shape[d] == self->global_shape()[d];
    index_dims.push_back(together ? d : ndim + d);
    if (!together && d != dim) kinds[d] = kinds[ndim + d] = AxisKind::kUncut;
  }
  Plan plan = solve(call, reading_axes(call, dim, index_dims, index_dims, std::move(kinds), shape));
  const SpecPtr held = plan.inputs[0];
  if (!held->is_cut(dim)) return plan;
  plan.run = [held, dim, at_self = call.arg("self"), at_index = call.arg("index")](LocalCall& call) {
    const at::Tensor self = call.tensor(at_self), index = call.tensor(at_index);
    const OwnedRows owned = owned_rows(index, *held, dim, false, "gather");
    if (self.size(dim) == 0) return call.give(at::zeros(index.sizes(), self.options()));
    call.give(self.gather(dim, owned.index).masked_fill_(owned.valid.logical_not(), 0));
  };
  return plan;
}

// Operators that add entries to rows, in any order.
bool adds_entries(const OpCall& call) {
  const std::string name = call.name();
  if (name.starts_with("aten::scatter_reduce"))
    return call.value("reduce").toStringRef() == "sum" && call.flag("include_self");
  return name.starts_with("aten::index_add") || name.starts_with("aten::scatter_add");
}

// The spec of what is written: where it is whole and new, dims other than `dim` take the cut of the source.
SpecPtr written_spec(const OpCall& call, int64_t dim, Arg at_source) {
  const SpecPtr self = without_partial(call.spec("self")), &index = call.spec("index");
  const SpecPtr source = at_source ? call.spec(at_source) : SpecPtr();
  if (call.writes("self") || !source || source->ndim() != self->ndim()) return self;
  Layout layout = self->layout();
  for (int64_t d = 0; d < self->ndim(); ++d) {
    const bool alike = source->global_shape()[d] == self->global_shape()[d] &&
                       (index->ndim() != self->ndim() || index->global_shape()[d] == self->global_shape()[d]);
    if (d != dim && alike && !layout.cuts[d] && is_free(source->cut(d), layout)) layout.cuts[d] = source->cut(d);
  }
  return intern(std::move(layout));
}

// A source that is cut along `dim` may be added where it lies: the sums of its ranks are addends of self. Only these
// move, and only where self keeps its rows whole or in its own cut; so not where they are more than the source.
std::optional<Plan> plan_addends(const OpCall& call, const SpecPtr& self, int64_t dim, Arg at_source) {
  const SpecPtr &source = call.spec(at_source), &index = call.spec("index");
  if (!adds_entries(call) || call.tensor("self").dtype == at::kBool) return std::nullopt;
  if (self->ndim() == 0 || source->ndim() != self->ndim() || !source->is_cut(dim)) return std::nullopt;
  const bool in_place = call.writes("self"), of_elements = index->ndim() == self->ndim();
  if (source->global_numel() < self->global_numel() * (in_place && !self->is_cut(dim) ? 2 : 1)) return std::nullopt;
  Layout sum = without_cuts(self, {dim})->layout(), held(call.mesh(), source->global_shape());
  held.cuts = sum.cuts;
  held.cuts[dim] = source->cut(dim);
  for (int64_t d = 0; d < self->ndim(); ++d) {
    if (d != dim && held.global_shape[d] != sum.global_shape[d]) return std::nullopt;
  }
  for (const int64_t m : source->cut(dim).mesh_dims) {
    if (sum.uses(m)) return std::nullopt;
    sum.partials[m] = ReduceOp::kSum;
  }
  const SpecPtr addends = intern(std::move(sum)), entries = intern(std::move(held));
  const SpecPtr places = of_elements ? entries : with_cuts_of(entries, {source->global_shape()[dim]}, {dim});
  if (index->global_shape() != places->global_shape()) return std::nullopt;
  // A whole index is looked at by every rank, which then finds the same to be wrong.
  const SpecPtr known = index->has_cut() ? places : replicated(call.mesh(), places->global_shape());
  const SpecPtr result = !in_place && !self->is_cut(dim) ? addends : self;
  Plan plan = unary_plan(call, in_place ? self : addends, {result});
  plan.inputs[call.slot(at_source)] = entries;
  plan.inputs[call.slot("index")] = known;
  plan.run = [=, move = std::make_shared<const Redistribution>(addends, result),
              own = std::make_shared<const Redistribution>(known, places), at_self = call.arg("self"),
              at_index = call.arg("index")](LocalCall& call) {
    at::Tensor target = call.tensor(at_self), index = call.tensor(at_index);
    if (known != places) check_rows(index, *addends, dim, false, call.op.operator_name().name.c_str());
    call.value(at_index) = own->apply(index);
    if (in_place) call.value(at_self) = at::zeros(addends->local_shape(), target.options());
    call.run();
    const at::Tensor sum = move->apply(call.result());
    call.give(in_place ? target.add_(sum) : sum);
  };
  return plan;
}

// index_add, index_copy, index_fill, index_reduce: of a cut dim each rank takes the entries that fall into its block.
std::optional<Plan> plan_index_write(const OpCall& call) {
  const Arg at_source = call.find({"source"});
  const int64_t dim = call.dim("dim", call.spec("self")->ndim());
  const SpecPtr self = written_spec(call, dim, at_source);
  if (at_source) {
    if (auto plan = plan_addends(call, self, dim, at_source)) return plan;
  }
  Plan plan = unary_plan(call, self, {self});
  for (size_t s = 1; s < call.slots().size(); ++s) {
    const SpecPtr& spec = call.slots()[s].spec;
    if (spec) plan.inputs[s] = replicated(call.mesh(), spec->global_shape());
  }
  const int source = at_source ? call.slot(at_source) : -1;
  if (source >= 0 && self->has_cut()) {
    const auto& sizes = call.slots()[source].spec->global_shape();
    if (static_cast<int64_t>(sizes.size()) != self->ndim()) return std::nullopt;
    std::vector<int64_t> dims = all_dims(self->ndim());
    dims[dim] = -1;
    for (int64_t d = 0; d < self->ndim(); ++d) {
      TORCH_CHECK_VALUE(d == dim || sizes[d] == self->global_shape()[d], call.name(), ": the source has ", sizes[d],
                        " rows along dim ", d, ", self has ", self->global_shape()[d], "\n  have  ", call.describe());
    }
    plan.inputs[source] = with_cuts_of(self, sizes, dims);
  }
  if (self->ndim() == 0 || !self->is_cut(dim)) return plan;
  const bool wrap = call.name().find("index_fill") != std::string::npos;
  plan.run = [self, dim, at_source, wrap, in_place = call.writes("self"), at_self = call.arg("self"),
              at_index = call.arg("index")](LocalCall& call) {
    const at::Tensor target = call.tensor(at_self);
    c10::IValue& index = call.value(at_index);
    const OwnedRows owned =
        owned_rows(index.toTensor().flatten(), *self, dim, wrap, call.op.operator_name().name.c_str());
    const at::Tensor positions = owned.positions();
    if (positions.numel() == 0) return call.give(in_place ? target : target.clone());
    index = owned.index.index_select(0, positions);
    if (at_source) {
      c10::IValue& value = call.value(at_source);
      value = value.toTensor().index_select(dim, positions);
    }
    call.run();
  };
  return plan;
}

// scatter and its kin. Entries for other ranks' rows go to one row more, which is thrown away.
std::optional<Plan> plan_scatter(const OpCall& call) {
  const Arg at_source = call.find({"src"});
  const int64_t dim = call.dim("dim", call.spec("self")->ndim());
  const SpecPtr self = written_spec(call, dim, at_source), &index = call.spec("index");
  if (self->ndim() == 0 || (index->ndim() != self->ndim() && self->has_cut())) return std::nullopt;
  call.output_shapes();
  if (at_source) {
    if (auto plan = plan_addends(call, self, dim, at_source)) return plan;
  }
  Plan plan = unary_plan(call, self, {self});
  for (size_t s = 1; s < call.slots().size(); ++s) {
    const auto& sizes = call.slots()[s].spec->global_shape();
    Layout layout(call.mesh(), sizes);
    for (int64_t d = 0; d < self->ndim() && !sizes.empty(); ++d) {
      if (d == dim || !self->is_cut(d)) continue;
      layout.cuts[d] = {self->cut(d).mesh_dims, beside(self->cut(d).sizes, index->global_shape()[d], sizes[d])};
    }
    plan.inputs[s] = intern(std::move(layout));
  }
  if (!self->is_cut(dim)) return plan;
  plan.run = [self, dim, in_place = call.writes("self"), at_self = call.arg("self"),
              at_index = call.arg("index")](LocalCall& call) {
    const at::Tensor target = call.tensor(at_self);
    const int64_t rows = target.size(dim);
    std::vector<int64_t> spare = target.sizes().vec();
    spare[dim] = 1;
    at::Tensor longer = at::cat({target, at::ones(spare, target.options())}, dim);
    c10::IValue& index = call.value(at_index);
    const OwnedRows owned = owned_rows(index.toTensor(), *self, dim, false, call.op.operator_name().name.c_str());
    index = owned.index.masked_fill(owned.valid.logical_not(), rows);
    call.value(at_self) = longer;
    call.run();
    at::Tensor result = call.result().narrow(dim, 0, rows);
    call.give(in_place ? target.copy_(result) : result.contiguous());
  };
  return plan;
}

const char* const kIndexDimGet = "any cut";
const char* const kIndexDimPut = "any cut; each rank writes the rows it owns; what is added may be added where it lies";

const Register index_dim_rules{
    {.op = "aten::index_select", .plan = plan_index_select, .supports = kIndexDimGet},
    {.op = "aten::gather", .plan = plan_gather, .supports = kIndexDimGet},
    {.op = {"aten::index_add", "aten::index_add_", "aten::index_copy", "aten::index_copy_",
            "aten::index_fill.int_Scalar", "aten::index_fill.int_Tensor", "aten::index_fill_.int_Scalar",
            "aten::index_fill_.int_Tensor", "aten::index_reduce", "aten::index_reduce_"},
     .plan = plan_index_write,
     .supports = kIndexDimPut,
     .traffic = Traffic::kRedistribute},
    {.op = {"aten::scatter.src", "aten::scatter.value", "aten::scatter.reduce", "aten::scatter.value_reduce",
            "aten::scatter_.value_reduce", "aten::scatter_.src", "aten::scatter_.value", "aten::scatter_.reduce",
            "aten::scatter_add", "aten::scatter_add_", "aten::scatter_reduce.two", "aten::scatter_reduce_.two"},
     .plan = plan_scatter,
     .supports = kIndexDimPut,
     .traffic = Traffic::kRedistribute},
};

}  // namespace
}  // namespace moonhalo
