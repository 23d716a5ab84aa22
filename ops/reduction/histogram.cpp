// SPDX-License-Identifier: Apache-2.0
// Histograms: every rank counts its own elements in the same bins and the counts add up. A range that is not given is
// that of the whole tensor.
#include <ATen/ATen.h>

#include <algorithm>

#include "moonhalo/engine/comm/reduction_kernels.h"
#include "moonhalo/engine/dispatch/axes.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "moonhalo/ops/support/reductions.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

struct Range {
  std::vector<double> low, high;  // one per column
};

// Of the columns of all ranks' `x` [rows, columns].
Range global_range(const at::Tensor& x, const CutGroup& group) {
  at::Tensor low, high;
  if (x.size(0) > 0) {
    std::tie(low, high) = at::aminmax(x, 0);
  } else {
    low = at::full({x.size(1)}, neutral_value(ReduceOp::kMin, x.scalar_type()), x.options());
    high = at::full({x.size(1)}, neutral_value(ReduceOp::kMax, x.scalar_type()), x.options());
  }
  low = group.all_reduce(low, ReduceOp::kMin).to(at::kDouble).cpu();
  high = group.all_reduce(high, ReduceOp::kMax).to(at::kDouble).cpu();
  const auto values = [](const at::Tensor& t) {
    return std::vector<double>(t.data_ptr<double>(), t.data_ptr<double>() + t.numel());
  };
  return {values(low), values(high)};
}

std::optional<Plan> plan_histc(const OpCall& call) {
  const SpecPtr from = without_partial(call.spec("self"));
  const auto dims = all_dims(from->ndim());
  const SpecPtr sums = reduced_spec(from, dims, false, ReduceOp::kSum);
  Layout layout(call.mesh(), {call.integer("bins")});
  layout.partials = sums->layout().partials;
  Plan plan{.inputs = {from}, .outputs = {intern(std::move(layout))}};
  const CutGroup group(from, dims);
  const double min = call.value("min").toScalar().toDouble(), max = call.value("max").toScalar().toDouble();
  if (group.alone() || min != max || from->global_numel() == 0) return plan;
  plan.run = [group](const c10::OperatorHandle& op, Stack& stack) {
    const at::Tensor x = argument(op, stack, 0).toTensor();
    const Range range = global_range(x.reshape({-1, 1}), group);
    const double widen = range.low[0] == range.high[0] ? 1 : 0;  // as histc does
    argument(op, stack, 2) = at::Scalar(range.low[0] - widen);
    argument(op, stack, 3) = at::Scalar(range.high[0] + widen);
    op.callBoxed(stack);
  };
  return plan;
}

// How `self` [rows..., columns] and its weights are held: an element is counted once, so all cuts of rows will do; the
// coordinates of a point stay together. The first output holds the counts.
Plan plan_rows(const OpCall& call, bool columns) {
  Axes axes;
  const auto rows = static_cast<int>(call.spec("self")->ndim()) - (columns ? 1 : 0);
  axes.kinds.assign(std::max(rows, 0), AxisKind::kReduce);
  std::vector<int> dims;
  for (int d = 0; d < rows; ++d) dims.push_back(d);
  for (const TensorArgument& slot : call.slots()) {
    axes.inputs.emplace_back(slot.spec ? slot.spec->ndim() : 0, -1);
  }
  if (call.has("weight") && call.spec("weight")) axes.inputs[call.slot("weight")] = dims;
  if (columns) dims.push_back(-1);
  axes.inputs[call.slot("self")] = dims;
  axes.outputs = {{}};
  axes.output_shapes = {{}};
  return solve(call, axes);
}

// Counts become densities: shares of all, per volume of the bins.
at::Tensor densities(at::Tensor counts, const std::vector<at::Tensor>& edges) {
  counts = counts / counts.sum();
  for (size_t d = 0; d < edges.size(); ++d) {
    std::vector<int64_t> shape(edges.size(), 1);
    shape[d] = -1;
    counts.div_(edges[d].diff().reshape(shape));
  }
  return counts;
}

// histogram and the operators behind histogramdd. Counts stay sums; densities need all of them, and are then the same
// everywhere.
template <bool kColumns>
std::optional<Plan> plan_histogram(const OpCall& call) {
  Plan plan = plan_rows(call, kColumns);
  const SpecPtr from = plan.inputs[call.slot("self")], sums = plan.outputs[0];
  const bool edges_alone = call.op.operator_name().name == "aten::_histogramdd_bin_edges";
  const bool density = call.flag("density") && !edges_alone;
  std::vector<int64_t> shape;
  for (const TensorArgument& slot : call.slots()) {
    if (slot.arg == 1) shape.push_back(slot.spec->global_shape()[0] - 1);
  }
  if (shape.empty()) shape = call.integers("bins");
  plan.outputs.clear();
  if (!edges_alone) {
    Layout layout(call.mesh(), shape);
    if (!density) layout.partials = sums->layout().partials;
    plan.outputs.push_back(intern(std::move(layout)));
  }
  if (!kColumns) plan.outputs.push_back(replicated(call.mesh(), {shape[0] + 1}));
  const CutGroup group(from, all_dims(from->ndim()));
  if (group.alone()) return plan;
  const int at_range = call.has("range") ? call.index("range") : -1;
  const bool infers = at_range >= 0 && !call.given("range") && from->global_numel() > 0;
  plan.run = [=, at_density = call.index("density")](const c10::OperatorHandle& op, Stack& stack) {
    const at::Tensor x = argument(op, stack, 0).toTensor();
    if (infers) {
      const Range range = global_range(kColumns ? x.flatten(0, -2) : x.reshape({-1, 1}), group);
      std::vector<double> ends;
      for (size_t c = 0; c < range.low.size(); ++c) ends.insert(ends.end(), {range.low[c], range.high[c]});
      argument(op, stack, at_range) = ends;
    }
    argument(op, stack, at_density) = false;
    std::vector<at::Tensor> edges;
    if (density && kColumns) {
      const c10::IValue& bins = argument(op, stack, 1);
      if (bins.isTensorList()) {
        edges = bins.toTensorVector();
      } else {
        const c10::IValue& range = argument(op, stack, at_range);
        const auto ends = range.isNone() ? std::vector<double>{} : range.toDoubleVector();
        const auto given = range.isNone() ? std::nullopt : std::optional<at::ArrayRef<double>>(ends);
        edges = at::_histogramdd_bin_edges(x, bins.toIntVector(), given);
      }
    }
    op.callBoxed(stack);
    if (!density) return;
    if (!kColumns) edges = {torch::jit::pop(stack).toTensor()};
    const at::Tensor counts = group.all_reduce(torch::jit::pop(stack).toTensor());
    torch::jit::push(stack, densities(counts, edges));
    if (!kColumns) torch::jit::push(stack, edges[0]);
  };
  return plan;
}

// As many counts as the greatest number of all ranks asks for.
std::optional<Plan> plan_bincount(const OpCall& call) {
  Axes axes;
  axes.kinds = {AxisKind::kReduce};
  for (const TensorArgument& slot : call.slots()) axes.inputs.emplace_back(slot.spec ? slot.spec->ndim() : 0, 0);
  TORCH_CHECK_VALUE(call.spec("self")->ndim() == 1, "bincount: numbers in one dim are expected\n  have  ", call.describe(),
                    "\n  fix   flatten them first");
  axes.outputs = {{}};
  axes.output_shapes = {{}};
  Plan plan = solve(call, axes);
  const SpecPtr from = plan.inputs[0], sums = plan.outputs[0];
  plan.outputs.clear();
  const CutGroup group(from, 0);
  if (group.alone() || from->global_numel() == 0) return plan;
  plan.outputs = {nullptr};
  plan.run = [=](const c10::OperatorHandle& op, Stack& stack) {
    const at::Tensor x = argument(op, stack, 0).toTensor();
    const c10::IValue& weight = argument(op, stack, 1);
    at::ScalarType dtype = at::kLong;
    if (weight.isTensor()) dtype = weight.toTensor().scalar_type() == at::kFloat ? at::kFloat : at::kDouble;
    at::Tensor most = x.numel() > 0 ? x.max().to(at::kLong) : at::full({}, -1, x.options().dtype(at::kLong));
    c10::IValue& length = argument(op, stack, 2);
    length = std::max(length.toInt(), group.all_reduce(most, ReduceOp::kMax).item<int64_t>() + 1);
    op.callBoxed(stack);
    const at::Tensor counts = torch::jit::pop(stack).toTensor().to(dtype);  // an empty block counts in integers
    Layout layout(from->mesh(), counts.sizes());
    layout.partials = sums->layout().partials;
    torch::jit::push(stack, wrap(counts, intern(std::move(layout))));
  };
  return plan;
}

constexpr auto* kSupports = "any cut; counts stay sums, a range that is not given is the global one";

const Register rules{
    {.op = "aten::histc", .plan = plan_histc, .source = "PyTorch histc", .supports = kSupports},
    {.op = "aten::histogram", .plan = plan_histogram<false>, .source = "PyTorch histogram", .supports = kSupports},
    {.op = "aten::_histogramdd_bin_edges",
     .plan = plan_histogram<true>,
     .source = "PyTorch histogramdd",
     .supports = "any cut but of the coordinates"},
    {.op = "aten::_histogramdd_from_bin_cts",
     .plan = plan_histogram<true>,
     .source = "PyTorch histogramdd",
     .supports = "any cut but of the coordinates; counts stay sums"},
    {.op = "aten::_histogramdd_from_bin_tensors",
     .plan = plan_histogram<true>,
     .source = "PyTorch histogramdd",
     .supports = "any cut but of the coordinates; counts stay sums"},
    {.op = "aten::bincount",
     .plan = plan_bincount,
     .source = "PyTorch bincount",
     .supports = "any cut; counts stay sums"},
};

}  // namespace
}  // namespace moonhalo
