// SPDX-License-Identifier: Apache-2.0
// Slices: along a cut dim every rank keeps the rows it owns, so nothing moves and the result shares memory. Equal parts
// (split, chunk) are fetched, each cut as the dim is (packed_dim.h).
//
//     x   |0 1 2 3 4|5 6 7 8|     x[1:8:3]   |1 4|7|     blocks may become uneven, or empty
//     rank     0        1         rank         0  1
#include <ATen/ATen.h>

#include <algorithm>
#include <memory>

#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/engine/tensor/output_cut.h"
#include "moonhalo/engine/tensor/view_copies.h"
#include "moonhalo/ops/support/grown_blocks.h"
#include "moonhalo/ops/support/packed_dim.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();

/// Rows start, start + step, ... of a dim: `length` of them.
struct StridedRows {
  int64_t start = 0, step = 1, length = 0;
  /// The number of them that are before `row`.
  int64_t before(int64_t row) const { return std::clamp<int64_t>((row - start + step - 1) / step, 0, length); }
};

StridedRows rows_of(const OpCall& call, int64_t extent) {
  StridedRows range{.step = call.integer("step")};
  TORCH_CHECK_VALUE(range.step > 0, call.name(), ": step ", range.step, " is not positive");
  const auto bound = [&](const char* name, int64_t otherwise) {
    int64_t value = call.given(name) ? call.integer(name) : otherwise;
    if (value < 0) value += extent;
    return std::clamp<int64_t>(value, 0, extent);
  };
  range.start = bound("start", 0);
  const int64_t end = std::max(bound("end", kEnd), range.start);
  range.length = (end - range.start + range.step - 1) / range.step;
  return range;
}

/// Start and end of the same rows in one block, as arguments of the local call.
Interval within(const StridedRows& range, int64_t begin, int64_t end) {
  const int64_t first = range.before(begin), last = range.before(end);
  if (first == last) return {};
  const int64_t start = range.start + first * range.step - begin;
  return {start, start + (last - first - 1) * range.step + 1};
}

std::vector<int64_t> kept_rows(const std::vector<int64_t>& sizes, const StridedRows& range) {
  std::vector<int64_t> kept;
  int64_t row = 0;
  for (const int64_t size : sizes) {
    kept.push_back(range.before(row + size) - range.before(row));
    row += size;
  }
  return kept;
}

SpecPtr sliced(const SpecPtr& spec, int64_t dim, const StridedRows& range) {
  Cut cut = spec->cut(dim);
  if (cut) cut.sizes = kept_rows(cut.sizes, range);
  return with_cut(spec, dim, std::move(cut), range.length);
}

void edit_rows(const OpCall& call, Plan& plan, const SpecPtr& spec, int64_t dim, const StridedRows& range) {
  if (!spec->is_cut(dim)) return;
  const int64_t begin = spec->offsets()[dim];
  const Interval local = within(range, begin, begin + spec->local_shape()[dim]);
  plan.argument_overrides.emplace_back(call.arg("start"), c10::IValue(local.begin));
  plan.argument_overrides.emplace_back(call.arg("end"), c10::IValue(local.end));
}

std::optional<Plan> plan_slice(const OpCall& call) {
  const SpecPtr self = without_partial(call.spec("self"));
  const auto shape = *call.output_shapes()[0];
  const int64_t dim = call.dim("dim", self->ndim());
  const StridedRows range = rows_of(call, self->global_shape()[dim]);
  TORCH_INTERNAL_ASSERT(shape[dim] == range.length);
  Plan plan = unary_plan(call, self, {sliced(self, dim, range)});
  edit_rows(call, plan, self, dim, range);
  return plan;
}

// The cut of the sliced tensor is not known. Any that keeps the gradient's rows in place is right; the one nearest to
// balanced blocks is the very cut wherever that was balanced. Where a block would get far more zeros than the others,
// rows of the gradient move.
std::optional<Plan> plan_slice_backward(const OpCall& call) {
  const SpecPtr grad = resolve_nonlinear(call.spec("grad_output"));
  const auto shape = call.integers("input_sizes");
  const int64_t dim = call.dim("dim", static_cast<int64_t>(shape.size()));
  const StridedRows range = rows_of(call, shape[dim]);
  const SpecPtr result =
      with_cut(grad, dim, grown_cut(grad->cut(dim), shape[dim], range.start, range.step), shape[dim]);
  Plan plan = unary_plan(call, sliced(result, dim, range), {result});
  plan.argument_overrides = {{call.arg("input_sizes"), int_list(result->local_shape())}};
  edit_rows(call, plan, result, dim, range);
  return plan;
}

// Where `self` and `src` are sums over the same ranks, each rank writes its addend into its addend.
SpecPtr with_common_sums(const SpecPtr& self, const SpecPtr& src) {
  Layout layout = self->layout();
  for (int64_t m = 0; m < self->mesh()->ndim(); ++m) {
    if (layout.partials[m] != ReduceOp::kSum || src->partial(m) != ReduceOp::kSum) layout.partials[m].reset();
  }
  return intern(std::move(layout));
}

std::optional<Plan> plan_slice_scatter(const OpCall& call) {
  const SpecPtr self = with_common_sums(call.spec("self"), call.spec("src"));
  call.output_shapes();
  const int64_t dim = call.dim("dim", self->ndim());
  const StridedRows range = rows_of(call, self->global_shape()[dim]);
  Plan plan = unary_plan(call, self, {self});
  plan.inputs[call.slot("src")] = sliced(self, dim, range);
  edit_rows(call, plan, self, dim, range);
  return plan;
}

std::optional<Plan> plan_narrow_copy(const OpCall& call) {
  const SpecPtr self = without_partial(call.spec("self"));
  const int64_t dim = call.dim("dim", self->ndim()), extent = self->global_shape()[dim];
  int64_t start = call.integer("start");
  const int64_t length = call.integer("length");
  if (start < 0) start += extent;
  TORCH_CHECK_VALUE(start >= 0 && length >= 0 && start + length <= extent, call.name(), ": rows ", start, " to ",
                    start + length, " of a dim of ", extent, "\n  have  ", call.describe());
  const StridedRows range{.start = start, .length = length};
  Plan plan = unary_plan(call, self, {sliced(self, dim, range)});
  Interval local{start, start + length};
  if (self->is_cut(dim)) {
    const int64_t begin = self->offsets()[dim];
    local = within(range, begin, begin + self->local_shape()[dim]);
  }
  plan.run = [dim, local, at_self = call.arg("self")](LocalCall& call) {
    call.give(call.tensor(at_self).slice(dim, local.begin, local.end).clone());
  };
  return plan;
}

std::vector<int64_t> without_dim(int64_t ndim, int64_t dim) {
  std::vector<int64_t> dims = all_dims(ndim);
  dims.erase(dims.begin() + dim);
  return dims;
}

// One row of a cut dim: its owner sends it to the ranks that share it out, and nothing else moves.
Run fetch_row(Arg at_self, const SpecPtr& self, int64_t dim, int64_t row) {
  const auto map = std::make_shared<IntervalMap>(self, [&](int64_t rank) {
    Box box = block_box(*self, rank);
    box[dim] = {row, row + 1};
    return requests_for(box);
  });
  const int64_t place = row - self->offsets()[dim];
  const bool mine = place >= 0 && place < self->local_shape()[dim];
  const auto put_back = [dim, place, mine](const at::Tensor& copy, const at::Tensor& original) {
    if (mine) original.narrow(dim, place, 1).copy_(copy);
  };
  return [map, dim, put_back, at_self](LocalCall& call) {
    const at::Tensor block = call.tensor(at_self);
    at::Tensor fetched = gather(*map, block);
    if (fetched.is_alias_of(block)) fetched = fetched.clone(at::MemoryFormat::Contiguous);
    mark_copied(
        fetched, [map](const at::Tensor& original) { return gather(*map, original); }, put_back);
    call.give(fetched.select(dim, 0));
  };
}

std::optional<Plan> plan_select(const OpCall& call) {
  const SpecPtr self = without_partial(call.spec("self"));
  const auto shape = *call.output_shapes()[0];
  const int64_t dim = call.dim("dim", self->ndim());
  const SpecPtr result = with_cuts_of(without_cuts(self, {dim}), shape, without_dim(self->ndim(), dim));
  Plan plan = unary_plan(call, self, {result});
  if (!self->is_cut(dim)) return plan;
  const int64_t index = call.integer("index");
  plan.run = fetch_row(call.arg("self"), self, dim, index < 0 ? index + self->global_shape()[dim] : index);
  plan.breaks_alias = true;
  return plan;
}

std::optional<Plan> plan_select_backward(const OpCall& call) {
  const SpecPtr grad = resolve_nonlinear(call.spec("grad_output"));
  const auto shape = call.integers("input_sizes");
  const auto ndim = static_cast<int64_t>(shape.size());
  const int64_t dim = call.dim("dim", ndim);
  std::vector<int64_t> source(ndim);
  for (int64_t d = 0; d < ndim; ++d) source[d] = d == dim ? -1 : d - (d > dim);
  const SpecPtr result = with_cuts_of(grad, shape, source);
  Plan plan = unary_plan(call, grad, {result});
  plan.argument_overrides = {{call.arg("input_sizes"), int_list(result->local_shape())}};
  return plan;
}

std::optional<Plan> plan_select_scatter(const OpCall& call) {
  const SpecPtr self = with_common_sums(call.spec("self"), call.spec("src"));
  call.output_shapes();
  const int64_t dim = call.dim("dim", self->ndim());
  const std::vector<int64_t> others = without_dim(self->ndim(), dim);
  const SpecPtr& src = call.spec("src");
  Plan plan = unary_plan(call, self, {self});
  plan.inputs[call.slot("src")] = with_cuts_of(without_cuts(self, {dim}), src->global_shape(), others);
  if (!self->is_cut(dim)) return plan;
  const int64_t index = call.integer("index"), begin = self->offsets()[dim];
  const int64_t row = (index < 0 ? index + self->global_shape()[dim] : index) - begin;
  const bool mine = row >= 0 && row < self->local_shape()[dim];
  plan.run = [dim, row, mine, at_self = call.arg("self"), at_src = call.arg("src")](LocalCall& call) {
    at::Tensor result = call.tensor(at_self).clone();
    if (mine) result.select(dim, row).copy_(call.tensor(at_src));
    call.give(std::move(result));
  };
  return plan;
}

// The dim that can take over a cut into `blocks`: the first that divides evenly, else nearly so.
std::optional<int64_t> dim_for_cut(const ShardSpec& spec, int64_t blocks) {
  std::optional<int64_t> found;
  for (int64_t d = 0; d < spec.ndim(); ++d) {
    const int64_t extent = spec.global_shape()[d];
    if (spec.is_cut(d) || extent == 0) continue;
    if (extent % blocks == 0) return d;
    if (!found && !divides_badly(extent, blocks)) found = d;
  }
  return found;
}

// Every rank gets its part of each row in one exchange, where another dim can be cut instead.
SpecPtr cut_for_unbind(const SpecPtr& self, int64_t dim) {
  const SpecPtr uncut = without_cuts(self, {dim});
  if (uncut == self || self->has_stored()) return uncut;
  Cut cut = self->cut(dim);
  const auto blocks = static_cast<int64_t>(cut.sizes.size());
  const auto other = dim_for_cut(*self, blocks);
  if (!other) return uncut;
  cut.sizes = balanced_sizes(self->global_shape()[*other], blocks);
  return with_cut(uncut, *other, std::move(cut), self->global_shape()[*other]);
}

std::optional<Plan> plan_unbind(const OpCall& call) {
  const SpecPtr self = without_partial(call.spec("self"));
  const auto shapes = call.output_shapes();
  const int64_t dim = call.dim("dim", self->ndim());
  const SpecPtr required = cut_for_unbind(self, dim);
  std::vector<SpecPtr> outputs;
  for (const auto& shape : shapes) outputs.push_back(with_cuts_of(required, *shape, without_dim(self->ndim(), dim)));
  return unary_plan(call, required, std::move(outputs));
}

// Equal parts are a packed dim, which programs combine row by row. In place, the first part would be on the first ranks
// alone. Where each part has rows for all ranks, it is cut in the same proportions as the dim.
std::optional<Plan> plan_equal_parts(const OpCall& call, const SpecPtr& self, int64_t dim,
                                     const std::vector<std::optional<std::vector<int64_t>>>& shapes) {
  if (!self->is_cut(dim) || self->has_stored() || output_cut() == OutputCut::kKeep) return std::nullopt;
  const Cut& cut = self->cut(dim);
  const auto n = static_cast<int64_t>(shapes.size()), blocks = static_cast<int64_t>(cut.sizes.size());
  const int64_t width = n > 0 ? (*shapes[0])[dim] : 0;
  if (n < 2 || width < blocks || width * n != self->global_shape()[dim]) return std::nullopt;
  if (std::any_of(shapes.begin(), shapes.end(), [&](const auto& shape) { return (*shape)[dim] != width; }))
    return std::nullopt;
  const std::vector<int64_t> sizes = proportional_sizes(cut.sizes, width);
  const auto packed = std::make_shared<const PackedDim>(self, with_parts(self, dim, n, sizes), dim);
  Plan plan = unary_plan(call, self, std::vector<SpecPtr>(n, with_cut(self, dim, {cut.mesh_dims, sizes}, width)));
  plan.breaks_alias = true;
  plan.run = [packed, dim, at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor parts = packed->unpack(call.tensor(at_self));
    mark_copied(
        parts, [packed](const at::Tensor& original) { return packed->unpack(original); },
        [packed](const at::Tensor& copy, const at::Tensor& original) { original.copy_(packed->pack(copy)); });
    call.give(parts.unbind(dim));
  };
  return plan;
}

std::optional<Plan> plan_split(const OpCall& call) {
  const SpecPtr self = without_partial(call.spec("self"));
  const auto shapes = call.output_shapes();
  const int64_t dim = call.dim("dim", self->ndim());
  if (auto equal = plan_equal_parts(call, self, dim, shapes)) return equal;
  std::vector<SpecPtr> outputs;
  std::vector<Interval> locals;
  StridedRows range;
  for (const auto& shape : shapes) {
    range.length = (*shape)[dim];
    outputs.push_back(sliced(self, dim, range));
    if (self->is_cut(dim)) {
      const int64_t begin = self->offsets()[dim];
      locals.push_back(within(range, begin, begin + self->local_shape()[dim]));
    }
    range.start += range.length;
  }
  Plan plan = unary_plan(call, self, std::move(outputs));
  if (locals.empty()) return plan;
  const bool fresh = call.name().find("_copy") != std::string::npos;
  plan.run = [dim, locals, fresh, at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor local = call.tensor(at_self);
    std::vector<at::Tensor> parts;
    for (const Interval& rows : locals) {
      const at::Tensor part = local.slice(dim, rows.begin, rows.end);
      parts.push_back(fresh ? part.clone() : part);
    }
    call.give(std::move(parts));
  };
  return plan;
}

const char* const kStays = "any cut; along a cut dim each rank keeps its rows";

const Register slice_rules{
    {.op = {"aten::slice.Tensor", "aten::slice_copy.Tensor"}, .plan = plan_slice, .supports = kStays},
    {.op = "aten::slice_backward",
     .plan = plan_slice_backward,
     .supports = "any cut; along a cut dim each rank keeps its rows, or blocks are balanced again"},
    {.op = "aten::slice_scatter", .plan = plan_slice_scatter, .supports = kStays},
    {.op = "aten::narrow_copy", .plan = plan_narrow_copy, .supports = kStays},
    {.op = {"aten::select.int", "aten::select_copy.int"},
     .plan = plan_select,
     .supports = "any cut",
     .traffic = Traffic::kHalo},
    {.op = "aten::select_backward", .plan = plan_select_backward, .supports = "any cut"},
    {.op = "aten::select_scatter", .plan = plan_select_scatter, .supports = "any cut"},
    {.op = {"aten::unbind.int", "aten::unbind_copy.int"},
     .plan = plan_unbind,
     .supports = "any cut; a cut of the dim itself moves to another dim, or is gathered if none divides evenly"},
    {.op = {"aten::split_copy.Tensor", "aten::split_with_sizes_copy", "aten::split.Tensor", "aten::split_with_sizes",
            "aten::unsafe_split.Tensor", "aten::unsafe_split_with_sizes"},
     .plan = plan_split,
     .supports = "any cut; equal parts are cut as the dim is, others stay where they are",
     .traffic = Traffic::kHalo},
};

}  // namespace
}  // namespace moonhalo
