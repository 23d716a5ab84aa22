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

// The range of each column of all ranks' `x` [rows, columns].
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
  plan.run = [group, at_self = call.arg("self"), at_min = call.arg("min"), at_max = call.arg("max")](LocalCall& call) {
    const at::Tensor x = call.tensor(at_self);
    const Range range = global_range(x.reshape({-1, 1}), group);
    const double widen = range.low[0] == range.high[0] ? 1 : 0;  // as histc does
    call.value(at_min) = at::Scalar(range.low[0] - widen);
    call.value(at_max) = at::Scalar(range.high[0] + widen);
    call.run();
  };
  return plan;
}

// `self` [rows..., columns] and its weights keep any cut of rows, for an element is counted once. The coordinates of a
// point stay together. The first output holds the counts.
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
  const Arg at_bins = call.arg("bins");
  std::vector<int64_t> shape;
  for (const TensorArgument& slot : call.slots()) {
    if (slot.arg == at_bins) shape.push_back(slot.spec->global_shape()[0] - 1);
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
  const Arg at_range = call.find({"range"});
  const bool infers = at_range && !call.given("range") && from->global_numel() > 0;
  plan.run = [=, at_density = call.arg("density"), at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor x = call.tensor(at_self);
    if (infers) {
      const Range range = global_range(kColumns ? x.flatten(0, -2) : x.reshape({-1, 1}), group);
      std::vector<double> ends;
      for (size_t c = 0; c < range.low.size(); ++c) ends.insert(ends.end(), {range.low[c], range.high[c]});
      call.value(at_range) = ends;
    }
    call.value(at_density) = false;
    std::vector<at::Tensor> edges;
    if (density && kColumns) {
      const c10::IValue& bins = call.value(at_bins);
      if (bins.isTensorList()) {
        edges = bins.toTensorVector();
      } else {
        const c10::IValue& range = call.value(at_range);
        const auto ends = range.isNone() ? std::vector<double>{} : range.toDoubleVector();
        const auto given = range.isNone() ? std::nullopt : std::optional<at::ArrayRef<double>>(ends);
        edges = at::_histogramdd_bin_edges(x, bins.toIntVector(), given);
      }
    }
    call.run();
    if (!density) return;
    if (!kColumns) edges = {call.result(1)};
    const at::Tensor counts = group.all_reduce(call.result(0));
    call.give(densities(counts, edges));
    if (!kColumns) call.add(edges[0]);
  };
  return plan;
}

// There are as many counts as the greatest number of all ranks asks for.
std::optional<Plan> plan_bincount(const OpCall& call) {
  Axes axes;
  axes.kinds = {AxisKind::kReduce};
  for (const TensorArgument& slot : call.slots()) axes.inputs.emplace_back(slot.spec ? slot.spec->ndim() : 0, 0);
  TORCH_CHECK_VALUE(call.spec("self")->ndim() == 1, "bincount: numbers in one dim are expected\n  have  ",
                    call.describe(), "\n  fix   flatten them first");
  axes.outputs = {{}};
  axes.output_shapes = {{}};
  Plan plan = solve(call, axes);
  const SpecPtr from = plan.inputs[0], sums = plan.outputs[0];
  plan.outputs.clear();
  const CutGroup group(from, 0);
  if (group.alone() || from->global_numel() == 0) return plan;
  plan.outputs = {nullptr};
  plan.run = [=, at_self = call.arg("self"), at_weights = call.arg("weights"),
              at_minlength = call.arg("minlength")](LocalCall& call) {
    const at::Tensor x = call.tensor(at_self);
    const c10::IValue& weight = call.value(at_weights);
    at::ScalarType dtype = at::kLong;
    if (weight.isTensor()) dtype = weight.toTensor().scalar_type() == at::kFloat ? at::kFloat : at::kDouble;
    at::Tensor most = x.numel() > 0 ? x.max().to(at::kLong) : at::full({}, -1, x.options().dtype(at::kLong));
    c10::IValue& length = call.value(at_minlength);
    length = std::max(length.toInt(), group.all_reduce(most, ReduceOp::kMax).item<int64_t>() + 1);
    call.run();
    const at::Tensor counts = call.result().to(dtype);  // an empty block counts in integers
    Layout layout(from->mesh(), counts.sizes());
    layout.partials = sums->layout().partials;
    call.give(wrap_new(counts, intern(std::move(layout))));
  };
  return plan;
}

constexpr auto* kHistogramSupports = "any cut; counts stay sums, a range that is not given is the global one";

const Register histogram_rules{
    {.op = "aten::histc", .plan = plan_histc, .supports = kHistogramSupports, .traffic = Traffic::kAllReduce},
    {.op = "aten::histogram",
     .plan = plan_histogram<false>,
     .supports = kHistogramSupports,
     .traffic = Traffic::kAllReduce},
    {.op = "aten::_histogramdd_bin_edges",
     .plan = plan_histogram<true>,
     .supports = "any cut but of the coordinates",
     .traffic = Traffic::kAllReduce},
    {.op = {"aten::_histogramdd_from_bin_cts", "aten::_histogramdd_from_bin_tensors"},
     .plan = plan_histogram<true>,
     .supports = "any cut but of the coordinates; counts stay sums",
     .traffic = Traffic::kAllReduce},
    {.op = "aten::bincount",
     .plan = plan_bincount,
     .supports = "any cut; counts stay sums",
     .traffic = Traffic::kAllReduce},
};

}  // namespace
}  // namespace moonhalo
