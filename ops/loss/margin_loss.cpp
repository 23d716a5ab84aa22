// SPDX-License-Identifier: Apache-2.0
// Margin losses of rows of scores: rows may be cut, the classes of a row are together. A mean is the sum of a block's
// rows divided by the number of all.
#include <ATen/ATen.h>
#include <ATen/core/Reduction.h>

#include "moonhalo/engine/dispatch/axes.h"

namespace moonhalo {
namespace {

// scores [rows, classes] or [classes]
struct RowLoss {
  Axes axes;
  int64_t rows = 1;
  int64_t ndim = 1;
};

RowLoss row_loss(const OpCall& call) {
  const SpecPtr& scores = call.spec("self");
  RowLoss loss;
  loss.ndim = scores->ndim();
  TORCH_CHECK_VALUE(loss.ndim <= 2, call.name(), ": scores of [rows, classes] are expected\n  have  ", call.describe());
  if (loss.ndim == 2) loss.rows = scores->global_shape()[0];
  loss.axes.kinds = {AxisKind::kKeep};
  for (const TensorArgument& slot : call.slots()) {
    // A tensor without rows is a vector of class weights or a single number.
    const bool of_rows = slot.spec && slot.spec->ndim() > 0 && loss.ndim == 2 &&
                         (slot.spec->ndim() == 2 || slot.arg == call.arg("target") ||
                          (call.has("grad_output") && slot.arg == call.arg("grad_output")));
    std::vector<int> dims(slot.spec ? slot.spec->ndim() : 0, -1);
    if (of_rows) dims[0] = 0;
    loss.axes.inputs.push_back(std::move(dims));
  }
  return loss;
}

std::optional<Plan> plan_forward(const OpCall& call) {
  const int64_t reduction = call.integer("reduction");
  RowLoss loss = row_loss(call);
  const bool marks = call.op.schema().returns().size() == 2;  // which scores are targets, [rows, classes]
  // A single row gives a list of one loss where its target is a list of one class.
  const bool listed = loss.ndim == 2 || (!marks && call.spec("target")->ndim() == 1);
  const bool each = reduction == at::Reduction::None && listed;
  if (!each) loss.axes.kinds = {AxisKind::kReduce};
  loss.axes.outputs = {each ? std::vector<int>{loss.ndim == 2 ? 0 : -1} : std::vector<int>{}};
  loss.axes.output_shapes = {each ? std::vector<int64_t>{loss.rows} : std::vector<int64_t>{}};
  Plan plan = solve(call, loss.axes);
  if (marks) plan.outputs.push_back(plan.inputs[call.slot("target")]);
  if (!plan.inputs[call.slot("self")]->has_cut()) return plan;
  const bool mean = reduction == at::Reduction::Mean;
  if (mean) plan.argument_overrides = {{call.arg("reduction"), static_cast<int64_t>(at::Reduction::Sum)}};
  plan.run = [=, rows = loss.rows, at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor x = call.tensor(at_self);
    if (x.numel() == 0) {
      call.give(each ? at::zeros({x.size(0)}, x.options()) : at::zeros({}, x.options()));
      if (marks) call.add(at::zeros(x.sizes(), x.options()));
      return;
    }
    call.run();
    c10::IValue& result = call.values()[0];
    if (mean) result = result.toTensor().div(rows);
  };
  return plan;
}

std::optional<Plan> plan_backward(const OpCall& call) {
  RowLoss loss = row_loss(call);
  loss.axes.outputs = {loss.axes.inputs[call.slot("self")]};
  loss.axes.output_shapes = {call.spec("self")->global_shape()};
  Plan plan = solve(call, loss.axes);
  if (!plan.outputs[0]->has_cut()) return plan;
  const bool mean = call.integer("reduction") == at::Reduction::Mean;
  if (mean) plan.argument_overrides = {{call.arg("reduction"), static_cast<int64_t>(at::Reduction::Sum)}};
  plan.run = [=, rows = loss.rows, at_self = call.arg("self"),
              at_grad_output = call.arg("grad_output")](LocalCall& call) {
    const at::Tensor x = call.tensor(at_self);
    if (x.numel() == 0) return call.give(at::zeros_like(x));
    c10::IValue& gradient = call.value(at_grad_output);
    if (mean) gradient = gradient.toTensor().div(rows);
    call.run();
  };
  return plan;
}

constexpr auto* kSupports = "any cut of the rows; sums and means stay Partial(sum)";

const Register margin_loss_rules{
    {.op = {"aten::multi_margin_loss", "aten::multilabel_margin_loss_forward"},
     .plan = plan_forward,
     .supports = kSupports},
    {.op = {"aten::multi_margin_loss_backward", "aten::multilabel_margin_loss_backward"},
     .plan = plan_backward,
     .supports = kSupports},
};

}  // namespace
}  // namespace moonhalo
