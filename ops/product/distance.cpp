// SPDX-License-Identifier: Apache-2.0
// Distances between the rows of two tensors, and a limit on norms. Rows stay cut; features are whole.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "moonhalo/engine/dispatch/axes.h"
#include "moonhalo/ops/support/reductions.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

// x1 [batch..., p, m] and x2 [batch..., r, m]; the axes are the batch dims, then p, r, m.
struct RowAxes {
  Axes axes;
  std::vector<int> pairs;      // [batch..., p, r]
  std::vector<int64_t> shape;  // of the pairs
  std::vector<int> first;      // [batch..., p, m]
  std::vector<int64_t> first_shape;
};

RowAxes row_axes(const OpCall& call, AxisKind features) {
  const SpecPtr &x1 = call.spec("x1"), &x2 = call.spec("x2");
  TORCH_CHECK_VALUE(x1->ndim() >= 2 && x2->ndim() >= 2 && x1->global_shape().back() == x2->global_shape().back(),
                    call.name(), ": rows of both tensors must have the same number of features\n  have  ",
                    call.describe());
  RowAxes rows;
  for (const SpecPtr& x : {x1, x2}) {
    const size_t count = x->ndim() - 2;
    auto& batch = rows.shape;
    if (count > batch.size()) batch.insert(batch.begin(), count - batch.size(), 1);
    for (size_t d = 0; d < count; ++d) {
      int64_t& extent = batch[batch.size() - count + d];
      if (extent == 1) extent = x->global_shape()[d];
    }
  }
  const int batch = static_cast<int>(rows.shape.size()), p = batch, r = batch + 1, m = batch + 2;
  rows.axes.kinds.assign(batch + 2, AxisKind::kKeep);
  rows.axes.kinds.push_back(features);
  const auto dims_of = [&](const SpecPtr& spec, int second_last, int last) {
    const int count = static_cast<int>(spec->ndim()) - 2;
    std::vector<int> dims;
    for (int d = 0; d < count; ++d) {
      const int axis = batch - count + d;
      dims.push_back(spec->global_shape()[d] == rows.shape[axis] ? axis : -1);
    }
    dims.push_back(second_last);
    dims.push_back(last);
    return dims;
  };
  rows.axes.inputs.resize(call.slots().size());
  rows.axes.inputs[call.slot("x1")] = dims_of(x1, p, m);
  rows.axes.inputs[call.slot("x2")] = dims_of(x2, r, m);
  for (int d = 0; d < batch; ++d) rows.pairs.push_back(d);
  rows.first = rows.pairs;
  rows.pairs.insert(rows.pairs.end(), {p, r});
  rows.first.insert(rows.first.end(), {p, m});
  rows.first_shape = rows.shape;
  rows.first_shape.insert(rows.first_shape.end(), {x1->global_shape()[x1->ndim() - 2], x1->global_shape().back()});
  rows.shape.insert(rows.shape.end(), {x1->global_shape()[x1->ndim() - 2], x2->global_shape()[x2->ndim() - 2]});
  return rows;
}

std::optional<Plan> plan_cdist(const OpCall& call) {
  RowAxes rows = row_axes(call, AxisKind::kUncut);
  rows.axes.outputs = {rows.pairs};
  rows.axes.output_shapes = {rows.shape};
  return solve(call, rows.axes);
}

// A sum over the rows of x2, feature by feature.
std::optional<Plan> plan_cdist_backward(const OpCall& call) {
  RowAxes rows = row_axes(call, AxisKind::kKeep);
  rows.axes.kinds[rows.pairs.back()] = AxisKind::kReduce;
  const int grad = call.slot(call.arg({"grad", "grad_output"}));  // renamed in LibTorch 2.15
  rows.axes.inputs[grad] = rows.pairs;
  rows.axes.inputs[call.slot("cdist")] = rows.pairs;
  rows.axes.linear.assign(call.slots().size(), PartialUse::kResolve);
  rows.axes.linear[grad] = PartialUse::kOneFactor;
  rows.axes.outputs = {rows.first};
  rows.axes.output_shapes = {rows.first_shape};
  Plan plan = solve(call, rows.axes);
  // For an empty tensor LibTorch's kernel gives a gradient without the batch dims.
  plan.run = [spec = plan.outputs[0], at_x2 = call.arg("x2"), at_x1 = call.arg("x1")](LocalCall& call) {
    const at::Tensor x1 = call.tensor(at_x1), x2 = call.tensor(at_x2);
    if (x1.numel() > 0 && x2.numel() > 0) return call.run();
    call.give(at::zeros(spec->local_shape(), x1.options()));
  };
  return plan;
}

// Pairs of rows of one tensor
//
//     x [n, m] -> distances of (0, 1) (0, 2) ... (0, n - 1) (1, 2) ...      all pairs of row i stand together
//
// so a cut of the rows is one of the pairs. The rows themselves, few against the pairs, are gathered.

int64_t pairs_of(int64_t begin, int64_t end, int64_t rows) {
  return (end - begin) * (rows - 1) - (begin + end - 1) * (end - begin) / 2;
}

Cut pair_cut(const ShardSpec& x) {
  Cut cut = x.cut(0);
  int64_t begin = 0;
  for (int64_t& size : cut.sizes) {
    const int64_t end = begin + size;
    size = pairs_of(begin, end, x.global_shape()[0]);
    begin = end;
  }
  return cut;
}

SpecPtr pair_spec(const SpecPtr& x) {
  const int64_t rows = x->global_shape()[0];
  Layout layout(x->mesh(), {rows * (rows - 1) / 2});
  layout.cuts[0] = pair_cut(*x);
  return intern(std::move(layout));
}

// Own rows, the rows from the first of them on, and which entries of their table are pairs of this rank.
struct OwnPairs {
  at::Tensor own, rest, mask;
};
OwnPairs own_pairs(const at::Tensor& x, const Interval& range) {
  const at::Tensor own = x.slice(0, range.begin, range.end), rest = x.slice(0, range.begin);
  return {own, rest, at::ones({own.size(0), rest.size(0)}, x.options().dtype(at::kBool)).triu_(1)};
}

void check_matrix(const OpCall& call, const ShardSpec& x) {
  TORCH_CHECK_VALUE(x.ndim() == 2, call.name(), ": rows of features are expected, a tensor of two dims\n  have  ",
                    call.describe(), "\n  fix   use cdist for batches");
}

// The kernels refuse rows with gaps, which the block of a whole without any may have.
void run_on_rows(LocalCall& call, Arg self) {
  call.value(self) = call.tensor(self).contiguous();
  call.run();
}

std::optional<Plan> plan_pdist(const OpCall& call) {
  const SpecPtr x = call.spec("self");
  check_matrix(call, *x);
  Plan plan{.inputs = {replicated(call.mesh(), x->global_shape())}, .outputs = {pair_spec(x)}};
  if (!x->is_cut(0)) {
    plan.run = [at_self = call.arg("self")](LocalCall& call) { run_on_rows(call, at_self); };
    return plan;
  }
  plan.run = [range = x->block_range(0, call.mesh()->rank()), p = call.value("p").toDouble(),
              at_self = call.arg("self")](LocalCall& call) {
    const OwnPairs pairs = own_pairs(call.tensor(at_self), range);
    const at::Tensor table = at::_cdist_forward(pairs.own, pairs.rest, p, std::nullopt);
    call.give(table.masked_select(pairs.mask));
  };
  return plan;
}

std::optional<Plan> plan_pdist_backward(const OpCall& call) {
  const SpecPtr x = call.spec("self");
  check_matrix(call, *x);
  const SpecPtr pairs = pair_spec(x), whole = replicated(call.mesh(), x->global_shape());
  Plan plan{.inputs = {pairs, whole, pairs}, .outputs = {whole}};
  if (!x->is_cut(0)) {
    plan.run = [at_self = call.arg("self")](LocalCall& call) { run_on_rows(call, at_self); };
    return plan;
  }
  Layout sums = whole->layout();
  for (const int64_t m : x->cut(0).mesh_dims) sums.partials[m] = ReduceOp::kSum;
  plan.outputs = {intern(std::move(sums))};
  plan.run = [range = x->block_range(0, call.mesh()->rank()), p = call.value("p").toDouble(),
              at_grad = call.arg({"grad", "grad_output"}), at_self = call.arg("self"),
              at_pdist = call.arg("pdist")](LocalCall& call) {
    const at::Tensor grad = call.tensor(at_grad), x = call.tensor(at_self), distance = call.tensor(at_pdist);
    const OwnPairs own = own_pairs(x, range);
    at::Tensor result = at::zeros_like(x);
    if (own.own.numel() > 0) {
      const auto table = [&](const at::Tensor& values) {
        return at::zeros(own.mask.sizes(), x.options()).masked_scatter_(own.mask, values);
      };
      const at::Tensor grads = table(grad), distances = table(distance);
      result.slice(0, range.begin, range.end).add_(at::_cdist_backward(grads, own.own, own.rest, p, distances));
      result.slice(0, range.begin)
          .add_(at::_cdist_backward(grads.t().contiguous(), own.rest, own.own, p, distances.t().contiguous()));
    }
    call.give(result);
  };
  return plan;
}

// Slices along `dim` whose norm exceeds the limit are scaled down to it; the norms are those of whole slices.
std::optional<Plan> plan_renorm(const OpCall& call) {
  const SpecPtr from = without_partial(call.spec("self"));
  const int64_t dim = call.dim("dim", from->ndim());
  std::vector<int64_t> dims = all_dims(from->ndim());
  dims.erase(dims.begin() + dim);
  const CutGroup group(from, dims);
  Plan plan{.inputs = {from}, .outputs = {from}};
  if (group.alone()) return plan;
  plan.run = [=, p = call.value("p").toScalar().toDouble(), limit = call.value("maxnorm").toScalar().toDouble(),
              at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor given = call.tensor(at_self);
    const at::Tensor x = given.to(wide_type(given.scalar_type()));
    at::Tensor norm;
    if (std::isinf(p)) {
      const at::Tensor size = x.abs();
      norm = x.numel() > 0 ? at::amax(size, dims, true) : at::sum(size, dims, true);
      norm = group.all_reduce(norm, ReduceOp::kMax);
    } else {
      norm = group.all_reduce(at::sum(x.abs().pow(p), dims, true)).pow(1 / p);
    }
    const at::Tensor factor = at::where(norm.gt(limit), limit / (norm + 1e-7), at::ones({}, norm.options()));
    call.give((x * factor).to(given.scalar_type()));
  };
  return plan;
}

constexpr auto* kRows = "any cut of batch and rows; cut features are gathered";

const Register distance_rules{
    {.op = {"aten::_cdist_forward", "aten::_euclidean_dist"}, .plan = plan_cdist, .supports = kRows},
    {.op = "aten::_cdist_backward",
     .plan = plan_cdist_backward,
     .supports = "any cut; a cut of the second rows leaves sums"},
    {.op = "aten::_pdist_forward",
     .plan = plan_pdist,
     .supports = "rows are gathered, their pairs are cut as the rows were"},
    {.op = "aten::_pdist_backward", .plan = plan_pdist_backward, .supports = "pairs cut as the rows are; leaves sums"},
    {.op = "aten::renorm", .plan = plan_renorm, .supports = "any cut", .traffic = Traffic::kAllReduce},
};

}  // namespace
}  // namespace moonhalo
