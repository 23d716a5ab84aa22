// SPDX-License-Identifier: Apache-2.0
// Diagonals. Within a block whose rows begin at r and columns at c, the diagonal `offset` is its diagonal offset + r -
// c, and from block to block its elements follow one another, so nothing moves, whichever dims are cut:
//
//     rows 0 1 | 2 3, columns 0 1 2 | 3 4        blocks hold the elements 0 1, none; 2, 3: a cut {2, 0, 1, 1}
#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/fill_diagonal_native.h>

#include <algorithm>
#include <utility>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/ops/support/above_autograd.h"
#include "moonhalo/ops/support/grown_blocks.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

struct Diagonal {
  int64_t dim1 = 0, dim2 = 1, offset = 0;
  /// Row of its first element.
  int64_t first_row() const { return std::max<int64_t>(0, -offset); }
  /// The same diagonal of the block that this rank holds of a tensor of spec `of`.
  int64_t local_offset(const ShardSpec& of) const { return offset + of.offsets()[dim1] - of.offsets()[dim2]; }
};

Diagonal diagonal_of(const OpCall& call, int64_t ndim) {
  const Diagonal diagonal{call.dim("dim1", ndim), call.dim("dim2", ndim), call.integer("offset")};
  TORCH_CHECK_VALUE(diagonal.dim1 != diagonal.dim2, call.name(), ": dims ", call.integer("dim1"), " and ",
                    call.integer("dim2"), " are the same\n  have  ", call.describe(),
                    "\n  fix   name two different dims");
  return diagonal;
}

// The cut of the diagonal. Whatever the order in which both cuts are nested, later blocks hold later elements, for
// neither rows nor columns ever go back along the diagonal.
Cut cut_of(const ShardSpec& self, const Diagonal& diagonal) {
  Cut cut;
  for (const int64_t d : {diagonal.dim1, diagonal.dim2}) {
    const auto& dims = self.cut(d).mesh_dims;
    cut.mesh_dims.insert(cut.mesh_dims.end(), dims.begin(), dims.end());
  }
  if (!cut) return cut;
  std::sort(cut.mesh_dims.begin(), cut.mesh_dims.end());
  const DeviceMesh& mesh = *self.mesh();
  int64_t blocks = 1;
  for (const int64_t m : cut.mesh_dims) blocks *= mesh.size(m);
  cut.sizes.assign(blocks, 0);
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    int64_t block = 0;
    for (const int64_t m : cut.mesh_dims) block = block * mesh.size(m) + mesh.coordinate(rank, m);
    const Interval rows = self.block_range(diagonal.dim1, rank), columns = self.block_range(diagonal.dim2, rank);
    cut.sizes[block] = rows.intersect(columns.shifted(-diagonal.offset)).size();
  }
  return cut;
}

// The spec of the diagonal of a tensor of spec `self`.
SpecPtr read_spec(const SpecPtr& self, at::IntArrayRef shape, const Diagonal& diagonal) {
  std::vector<int64_t> source;
  for (int64_t d = 0; d < self->ndim(); ++d) {
    if (d != diagonal.dim1 && d != diagonal.dim2) source.push_back(d);
  }
  source.push_back(-1);
  const SpecPtr others = with_cuts_of(self, shape, source);
  return with_cut(others, others->ndim() - 1, cut_of(*self, diagonal), shape.back());
}

// The spec of a tensor whose diagonal has spec `read`: a cut of the diagonal becomes one of the rows.
SpecPtr written_spec(const SpecPtr& read, at::IntArrayRef shape, const Diagonal& diagonal) {
  std::vector<int64_t> source(shape.size(), -1);
  for (int64_t d = 0, next = 0; d < static_cast<int64_t>(shape.size()); ++d) {
    if (d != diagonal.dim1 && d != diagonal.dim2) source[d] = next++;
  }
  const SpecPtr others = with_cuts_of(read, shape, source);
  const int64_t last = read->ndim() - 1, rows = shape[diagonal.dim1];
  return with_cut(others, diagonal.dim1, grown_cut(read->cut(last), rows, diagonal.first_row(), 1), rows);
}

// The spec that a diagonal of spec `read` must have to become a tensor of spec `written`, whose blocks may be balanced.
SpecPtr required_spec(const SpecPtr& read, const SpecPtr& written, const Diagonal& diagonal) {
  const int64_t last = read->ndim() - 1, length = read->global_shape()[last], first = diagonal.first_row();
  Cut cut = written->cut(diagonal.dim1);
  int64_t row = 0;
  for (int64_t& size : cut.sizes) {
    const int64_t begin = std::exchange(row, row + size);
    size = Interval{begin, row}.intersect({first, first + length}).size();
  }
  return with_cut(read, last, std::move(cut), length);
}

std::optional<Plan> plan_diagonal(const OpCall& call) {
  const SpecPtr self = without_partial(call.spec("self"));
  const auto shape = *call.output_shapes()[0];
  const Diagonal diagonal = diagonal_of(call, self->ndim());
  Plan plan = unary_plan(call, self, {read_spec(self, shape, diagonal)});
  plan.argument_overrides = {{call.arg("offset"), c10::IValue(diagonal.local_offset(*self))}};
  return plan;
}

std::optional<Plan> plan_diagonal_backward(const OpCall& call) {
  const SpecPtr grad = resolve_nonlinear(call.spec("grad_output"));
  const auto shape = call.integers("input_sizes");
  const Diagonal diagonal = diagonal_of(call, static_cast<int64_t>(shape.size()));
  const SpecPtr result = written_spec(grad, shape, diagonal);
  Plan plan = unary_plan(call, required_spec(grad, result, diagonal), {result});
  plan.argument_overrides = {{call.arg("input_sizes"), int_list(result->local_shape())},
                             {call.arg("offset"), c10::IValue(diagonal.local_offset(*result))}};
  return plan;
}

std::optional<Plan> plan_diagonal_scatter(const OpCall& call) {
  const SpecPtr self = without_partial(call.spec("self"));
  call.output_shapes();
  const Diagonal diagonal = diagonal_of(call, self->ndim());
  Plan plan = unary_plan(call, self, {self});
  const int src = call.slot("src");
  plan.inputs[src] = read_spec(self, call.slots()[src].spec->global_shape(), diagonal);
  plan.argument_overrides = {{call.arg("offset"), c10::IValue(diagonal.local_offset(*self))}};
  return plan;
}

std::optional<Plan> plan_diag_embed(const OpCall& call) {
  const SpecPtr self = resolve_nonlinear(call.spec("self"));
  const auto shape = *call.output_shapes()[0];
  const Diagonal diagonal = diagonal_of(call, self->ndim() + 1);
  const SpecPtr result = written_spec(self, shape, diagonal);
  Plan plan = unary_plan(call, required_spec(self, result, diagonal), {result});
  if (!self->has_cut()) return plan;
  plan.run = [shape = result->local_shape(), diagonal, offset = diagonal.local_offset(*result),
              at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor local = call.tensor(at_self);
    at::Tensor embedded = at::zeros(shape, local.options());
    embedded.diagonal(offset, diagonal.dim1, diagonal.dim2).copy_(local);
    call.give(std::move(embedded));
  };
  return plan;
}

// Every rank sums what it holds of the diagonal.
std::optional<Plan> plan_trace(const OpCall& call) {
  SpecPtr self = call.spec("self");
  TORCH_CHECK_VALUE(self->ndim() == 2, call.name(), ": a tensor of ", self->ndim(), " dims, not a matrix\n  have  ",
                    call.describe());
  Layout required = self->layout(), result(call.mesh(), {});
  for (int64_t m = 0; m < call.mesh()->ndim(); ++m) {
    if (required.partials[m] != ReduceOp::kSum) required.partials[m].reset();
    if (required.uses(m)) result.partials[m] = ReduceOp::kSum;
  }
  self = intern(std::move(required));
  Plan plan = unary_plan(call, self, {intern(std::move(result))});
  plan.run = [offset = Diagonal{}.local_offset(*self), at_self = call.arg("self")](LocalCall& call) {
    call.give(call.tensor(at_self).diagonal(offset).sum());
  };
  return plan;
}

// A composite that walks through memory by strides: diagonal_interception above autograd and carried out through
// diagonals, which share memory on any cut. A tall matrix that is filled on (`wrap`) has a new one every columns + 1
// rows.
at::Tensor& fill_diagonal(at::Tensor& self, const at::Scalar& value, bool wrap) {
  if (!is_shard_tensor(self) || self.dim() < 2) return at::native::fill_diagonal_(self, value, wrap);
  if (self.dim() == 2) {
    const int64_t rows = self.size(0), period = wrap ? self.size(1) + 1 : std::max<int64_t>(rows, 1);
    for (int64_t row = 0; row < rows; row += period) self.diagonal(-row).fill_(value);
    return self;
  }
  for (int64_t d = 1; d < self.dim(); ++d) {
    TORCH_CHECK_VALUE(self.size(d) == self.size(0),
                      "fill_diagonal_: the dims of a tensor of more than two must be equal\n  have  ",
                      shape_string(self.sizes()));
  }
  at::Tensor line = self.diagonal(0, 0, self.dim() - 1);
  while (line.dim() > 1) line = line.diagonal(0, 0, line.dim() - 1);
  line.fill_(value);
  return self;
}

void intercept_diagonal(torch::Library& library) { library.impl("fill_diagonal_", &fill_diagonal); }
const InterceptAboveAutograd diagonal_interception(&intercept_diagonal);

const char* const kDiagonalAny = "any cut, of the two dims too";

const Register diagonal_rules{
    {.op = {"aten::diagonal", "aten::diagonal_copy"}, .plan = plan_diagonal, .supports = kDiagonalAny},
    {.op = "aten::diagonal_backward",
     .plan = plan_diagonal_backward,
     .supports = "any cut; one of the diagonal becomes one of the first dim"},
    {.op = "aten::diagonal_scatter",
     .plan = plan_diagonal_scatter,
     .supports = "any cut; what is scattered is cut to fit"},
    {.op = "aten::diag_embed",
     .plan = plan_diag_embed,
     .supports = "any cut; one of the last dim becomes one of the first of both dims"},
    {.op = "aten::trace", .plan = plan_trace, .supports = "any cut; the result stays a sum"},
};

}  // namespace
}  // namespace moonhalo
