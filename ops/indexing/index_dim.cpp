// SPDX-License-Identifier: Apache-2.0
// Indexing along one dim: index_select, gather, index_add and its kin, scatter and its kin. Rows of a cut dim that are
// read are sent to who asks for them, and sums of what is added are sent back (picked_rows.h). Else each rank reads or
// writes the rows that it owns; what is read so is Partial.
#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>

#include <algorithm>
#include <memory>

#include "moonhalo/engine/dispatch/axes.h"
#include "moonhalo/engine/exchange/redistribution.h"
#include "moonhalo/ops/support/local_rows.h"
#include "moonhalo/ops/support/picked_rows.h"
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

std::optional<Plan> plan_picked_select(const OpCall& call, int64_t dim) {
  const SpecPtr& index = call.spec("index");
  const auto rows = picked_rows(call.spec("self"), {dim}, index, UncutIndex::kShare);
  if (!rows) return std::nullopt;
  Plan plan = unary_plan(call, rows->table, {with_cut(rows->table, dim, rows->entries->cut(0), index->global_numel())});
  plan.inputs[call.slot("index")] = rows->index();
  plan.asks_for_tensors = true;
  plan.run = [rows = *rows, dim, at_self = call.arg("self"), at_index = call.arg("index")](LocalCall& call) {
    const auto picked = route_of(rows, {call.tensor(at_index)}, call.given(at_index), "index_select");
    call.give(picked->route.fetch(call.tensor(at_self), dim));
  };
  return plan;
}

std::optional<Plan> plan_index_select(const OpCall& call) {
  const SpecPtr &self = call.spec("self"), &index = call.spec("index");
  const int64_t dim = call.dim("dim", self->ndim());
  if (self->ndim() == 0 || index->ndim() > 1) return std::nullopt;
  if (auto plan = plan_picked_select(call, dim)) return plan;
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
  Layout required(call.mesh(), index->global_shape());
  for (int64_t d = 0; d < self->ndim(); ++d) {
    if (d == dim || !self->is_cut(d)) continue;
    const int64_t rows = index->global_shape()[d];
    shorter |= rows != self->global_shape()[d];
    required.cuts[d] = {self->cut(d).mesh_dims, beside(self->cut(d).sizes, rows, rows)};
  }
  if (!shorter) return std::nullopt;
  const SpecPtr held = without_cuts(self, {dim});
  Layout result = required;
  result.partials = held->layout().partials;
  Plan plan = unary_plan(call, held, {intern(std::move(result))});
  plan.inputs[call.slot("index")] = intern(std::move(required));
  return plan;
}

// True if an index of single elements, or their source, goes with self in the dims other than `dim`.
bool goes_with(const ShardSpec& other, const ShardSpec& self, int64_t dim) {
  for (int64_t d = 0; d < self.ndim(); ++d) {
    if (d == dim) continue;
    if (other.global_shape()[d] != self.global_shape()[d]) return false;
    if (other.is_cut(d) && other.cut(d) != self.cut(d)) return false;
  }
  return true;
}

// The cut of one dim of `spec`.
SpecPtr along(const SpecPtr& spec, int64_t dim) { return with_cuts_of(spec, {spec->global_shape()[dim]}, {dim}); }

// As a line of elements, the rows of `dim` first; a view where that is possible.
at::Tensor in_line(const at::Tensor& tensor, int64_t dim) { return tensor.movedim(dim, 0).reshape({-1}); }

std::optional<Plan> plan_picked_gather(const OpCall& call, int64_t dim) {
  const SpecPtr &self = call.spec("self"), &index = call.spec("index");
  if (!goes_with(*index, *self, dim)) return std::nullopt;
  const auto rows = picked_rows(self, {dim}, along(index, dim), UncutIndex::kShare);
  if (!rows) return std::nullopt;
  const SpecPtr result = with_cut(rows->table, dim, rows->entries->cut(0), index->global_shape()[dim]);
  Plan plan = unary_plan(call, rows->table, {result});
  plan.inputs[call.slot("index")] = without_partial(rows->known ? without_cuts(result, {dim}) : result);
  plan.asks_for_tensors = true;
  plan.run = [rows = *rows, dim, shape = result->local_shape(), at_self = call.arg("self"),
              at_index = call.arg("index")](LocalCall& call) {
    const at::Tensor self = call.tensor(at_self), index = call.tensor(at_index).movedim(dim, 0);
    const auto picked = route_by_columns(rows, index, call.given(at_index), "gather");
    if (!picked->elements) return call.give(picked->route.fetch(self, dim));
    std::vector<int64_t> moved = index.sizes().vec();
    moved[0] = shape[dim];
    call.give(picked->route.fetch(in_line(self, dim), 0).view(moved).movedim(0, dim).contiguous());
  };
  return plan;
}

std::optional<Plan> plan_gather(const OpCall& call) {
  const SpecPtr &self = call.spec("self"), &index = call.spec("index");
  if (self->ndim() == 0 || index->ndim() != self->ndim()) return std::nullopt;
  const auto shape = *call.output_shapes()[0];
  const int64_t dim = call.dim("dim", self->ndim());
  if (auto plan = plan_short_gather(call, dim)) return plan;
  if (auto plan = plan_picked_gather(call, dim)) return plan;
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
    const bool identical = source->global_shape()[d] == self->global_shape()[d] &&
                           (index->ndim() != self->ndim() || index->global_shape()[d] == self->global_shape()[d]);
    if (d != dim && identical && !layout.cuts[d] && is_free(source->cut(d), layout)) layout.cuts[d] = source->cut(d);
  }
  return intern(std::move(layout));
}

// Entries of the ranks that are added to rows of a cut dim: each rank sums up what is for one row, and sends it there.
std::optional<Plan> plan_picked_addends(const OpCall& call, const SpecPtr& self, int64_t dim, Arg at_source) {
  if (!adds_entries(call) || call.tensor("self").dtype == at::kBool || self->ndim() == 0 || !self->is_cut(dim))
    return std::nullopt;
  const SpecPtr &source = call.spec(at_source), &index = call.spec("index");
  const bool columns = call.name().starts_with("aten::scatter");
  if (source->ndim() != self->ndim() || index->ndim() != (columns ? self->ndim() : 1)) return std::nullopt;
  for (int64_t d = 0; d < self->ndim(); ++d) {
    if (d != dim && source->global_shape()[d] != self->global_shape()[d]) return std::nullopt;
  }
  if (columns && (!goes_with(*index, *self, dim) || !goes_with(*source, *self, dim))) return std::nullopt;
  const SpecPtr entries = along(source, dim), names = columns ? along(index, dim) : index;
  if (names->global_shape() != entries->global_shape()) return std::nullopt;
  const auto rows = picked_rows(self, {dim}, names, UncutIndex::kOwn, entries);
  if (!rows) return std::nullopt;
  const SpecPtr lying = with_cut(self, dim, rows->entries->cut(0), source->global_shape()[dim]);
  Plan plan = unary_plan(call, self, {self});
  plan.inputs[call.slot(at_source)] = lying;
  plan.inputs[call.slot("index")] = !columns ? rows->index() : rows->known ? without_cuts(lying, {dim}) : lying;
  plan.asks_for_tensors = true;
  plan.run = [rows = *rows, dim, columns, to = RowSums(self, *rows, call.writes("self")), at_source,
              at_self = call.arg("self"), at_index = call.arg("index"),
              at_alpha = call.find({"alpha"})](LocalCall& call) {
    const at::Tensor target = call.tensor(at_self), source = call.tensor(at_source), index = call.tensor(at_index);
    const char* const op = call.op.operator_name().name.c_str();
    const at::Scalar alpha = at_alpha ? call.value(at_alpha).toScalar() : at::Scalar(1);
    const auto picked = columns ? route_by_columns(rows, index.movedim(dim, 0), call.given(at_index), op)
                                : route_of(rows, {index}, call.given(at_index), op);
    const at::Tensor sums = to.begin(target);
    if (picked->elements) {
      const at::Tensor line = in_line(sums, dim);
      picked->route.add(in_line(source, dim), 0, alpha, line);
      if (!line.is_alias_of(sums)) sums.copy_(line.view(sums.movedim(dim, 0).sizes()).movedim(0, dim));
    } else {
      picked->route.add(source, dim, alpha, sums);
    }
    call.give(to.end(target, sums));
  };
  return plan;
}

// A source that is cut along `dim` may be added where it is: the sums of its ranks are addends of self. Only these
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
    if (auto plan = plan_picked_addends(call, self, dim, at_source)) return plan;
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
    if (auto plan = plan_picked_addends(call, self, dim, at_source)) return plan;
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

const char* const kIndexDimGet = "any cut; of a cut dim the rows that are asked for are sent";
const char* const kIndexDimPut = "any cut; each rank writes the rows it owns; sums of what is added are sent there";

const Register index_dim_rules{
    {.op = "aten::index_select",
     .plan = plan_index_select,
     .supports = kIndexDimGet,
     .traffic = Traffic::kDataDependent},
    {.op = "aten::gather", .plan = plan_gather, .supports = kIndexDimGet, .traffic = Traffic::kDataDependent},
    {.op = {"aten::index_add", "aten::index_add_", "aten::index_copy", "aten::index_copy_",
            "aten::index_fill.int_Scalar", "aten::index_fill.int_Tensor", "aten::index_fill_.int_Scalar",
            "aten::index_fill_.int_Tensor", "aten::index_reduce", "aten::index_reduce_"},
     .plan = plan_index_write,
     .supports = kIndexDimPut,
     .traffic = Traffic::kRedistribute | Traffic::kDataDependent},
    {.op = {"aten::scatter.src", "aten::scatter.value", "aten::scatter.reduce", "aten::scatter.value_reduce",
            "aten::scatter_.value_reduce", "aten::scatter_.src", "aten::scatter_.value", "aten::scatter_.reduce",
            "aten::scatter_add", "aten::scatter_add_", "aten::scatter_reduce.two", "aten::scatter_reduce_.two"},
     .plan = plan_scatter,
     .supports = kIndexDimPut,
     .traffic = Traffic::kRedistribute | Traffic::kDataDependent},
};

}  // namespace
}  // namespace moonhalo
