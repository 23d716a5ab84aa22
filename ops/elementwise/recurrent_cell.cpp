// SPDX-License-Identifier: Apache-2.0
// The pointwise part of an LSTM's and a GRU's step, which LibTorch calls on devices in place of the operators that it
// is made of. The batch may be cut; the gates of a cell stand side by side, so the other dim is whole.
//
//     gates [batch, 4 or 3 * hidden]    states [batch, hidden]    biases [4 or 3 * hidden]
#include <ATen/ATen.h>
#include <ATen/ops/cudnn_is_acceptable_native.h>

#include <string_view>

#include "moonhalo/engine/dispatch/axes.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/ops/support/above_autograd.h"
#include "moonhalo/ops/support/reductions.h"

namespace moonhalo {
namespace {

using at::Tensor;

// With the batch as the only axis that may be cut; tensors of one dim are biases. `widths`: of the results, in units of
// the width of the tensor called `first`.
Plan plan_batch(const OpCall& call, std::string_view first, const std::vector<std::pair<int64_t, int64_t>>& widths) {
  const SpecPtr& given = call.spec(first);
  TORCH_CHECK_VALUE(given->ndim() == 2, call.name(), ": ", first, " of ", given->ndim(), " dims\n  have  ",
                    call.describe(), "\n  fix   give a batch");
  Axes axes;
  axes.kinds = {AxisKind::kKeep};
  for (const TensorArgument& slot : call.slots()) {
    const int64_t ndim = slot.spec ? slot.spec->ndim() : 0;
    axes.inputs.push_back(ndim == 2 ? std::vector<int>{0, -1} : std::vector<int>(ndim, -1));
  }
  for (const auto& [factor, divisor] : widths) {
    axes.outputs.push_back({0, -1});
    axes.output_shapes.push_back({given->global_shape()[0], given->global_shape()[1] * factor / divisor});
  }
  return solve(call, axes);
}

// A device's own kernel, where it has one.
bool fused(const c10::OperatorHandle& op, const Tensor& block) {
  return !block.is_cpu() && op.hasKernelForDispatchKey(c10::highestPriorityBackendTypeId(block.key_set()));
}

Tensor with_biases(Tensor gates, const Tensor& bias) { return bias.defined() ? gates.add(bias) : gates; }

// The workspace holds the gates as they were used: in, forget, cell, out.
std::optional<Plan> plan_lstm(const OpCall& call) {
  Plan plan = plan_batch(call, "input_gates", {{1, 4}, {1, 4}, {1, 1}});
  plan.run = [at_input = call.arg("input_gates"), at_hidden = call.arg("hidden_gates"), at_cx = call.arg("cx"),
              at_input_bias = call.arg("input_bias"), at_hidden_bias = call.arg("hidden_bias")](LocalCall& call) {
    const Tensor input = call.tensor(at_input);
    if (fused(call.op, input)) return call.run();
    const Tensor gates = with_biases(with_biases(input.add(call.tensor(at_hidden)), call.tensor(at_input_bias)),
                                     call.tensor(at_hidden_bias));
    const auto parts = gates.chunk(4, 1);
    const Tensor in = parts[0].sigmoid(), forget = parts[1].sigmoid(), cell = parts[2].tanh(), out = parts[3].sigmoid();
    Tensor cy = (forget * call.tensor(at_cx)).add_(in * cell), hy = out * cy.tanh();
    call.give(std::move(hy), std::move(cy), at::cat({in, forget, cell, out}, 1));
  };
  return plan;
}

// Specs of gradients: of the batch as it is cut, of biases a sum over it.
std::vector<SpecPtr> with_bias_sums(const std::vector<SpecPtr>& kept, const SpecPtr& gates, int biases, bool has_bias) {
  std::vector<SpecPtr> all = kept;
  for (int i = 0; i < biases; ++i) all.push_back(has_bias ? reduced_spec(gates, 0, false, ReduceOp::kSum) : SpecPtr());
  return all;
}

Tensor bias_sum(const Tensor& gates, bool has_bias) { return has_bias ? gates.sum(0) : Tensor(); }

std::optional<Plan> plan_lstm_backward(const OpCall& call) {
  Plan plan = plan_batch(call, "workspace", {{1, 1}, {1, 4}});
  const bool has_bias = call.flag("has_bias");
  plan.outputs = with_bias_sums(plan.outputs, plan.outputs[0], 1, has_bias);
  plan.run = [has_bias, at_grad_hy = call.arg("grad_hy"), at_grad_cy = call.arg("grad_cy"), at_cx = call.arg("cx"),
              at_cy = call.arg("cy"), at_workspace = call.arg("workspace")](LocalCall& call) {
    const Tensor workspace = call.tensor(at_workspace);
    if (fused(call.op, workspace)) return call.run();
    const Tensor grad_hy = call.tensor(at_grad_hy), grad_cy = call.tensor(at_grad_cy), cx = call.tensor(at_cx);
    const auto gates = workspace.chunk(4, 1);
    const Tensor &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3],
                 squashed = call.tensor(at_cy).tanh();
    Tensor of_cy = grad_hy.defined() ? grad_hy * out * (1 - squashed.square()) : at::zeros_like(cx);
    if (grad_cy.defined()) of_cy = of_cy + grad_cy;
    const Tensor of_out = grad_hy.defined() ? grad_hy * squashed * (1 - out) * out : at::zeros_like(out);
    Tensor of_gates = at::cat(
        {of_cy * cell * (1 - in) * in, of_cy * cx * (1 - forget) * forget, of_cy * in * (1 - cell.square()), of_out},
        1);
    Tensor of_bias = bias_sum(of_gates, has_bias);
    call.give(std::move(of_gates), of_cy * forget, std::move(of_bias));
  };
  return plan;
}

// The workspace holds reset, update and new gate, the old state, and the hidden part of the new gate.
std::optional<Plan> plan_gru(const OpCall& call) {
  Plan plan = plan_batch(call, "input_gates", {{1, 3}, {5, 3}});
  plan.run = [at_input = call.arg("input_gates"), at_hidden = call.arg("hidden_gates"), at_hx = call.arg("hx"),
              at_input_bias = call.arg("input_bias"), at_hidden_bias = call.arg("hidden_bias")](LocalCall& call) {
    const Tensor given = call.tensor(at_input);
    if (fused(call.op, given)) return call.run();
    const auto input = with_biases(given, call.tensor(at_input_bias)).chunk(3, 1),
               hidden = with_biases(call.tensor(at_hidden), call.tensor(at_hidden_bias)).chunk(3, 1);
    const Tensor reset = (input[0] + hidden[0]).sigmoid(), update = (input[1] + hidden[1]).sigmoid(),
                 fresh = (input[2] + reset * hidden[2]).tanh(), hx = call.tensor(at_hx);
    call.give(fresh + update * (hx - fresh), at::cat({reset, update, fresh, hx, hidden[2]}, 1));
  };
  return plan;
}

std::optional<Plan> plan_gru_backward(const OpCall& call) {
  Plan plan = plan_batch(call, "workspace", {{3, 5}, {3, 5}, {1, 5}});
  const bool has_bias = call.flag("has_bias");
  plan.outputs = with_bias_sums(plan.outputs, plan.outputs[0], 2, has_bias);
  plan.run = [has_bias, at_grad = call.arg("grad_hy"), at_workspace = call.arg("workspace")](LocalCall& call) {
    const Tensor grad = call.tensor(at_grad), workspace = call.tensor(at_workspace);
    if (fused(call.op, workspace)) return call.run();
    const auto kept = workspace.chunk(5, 1);
    const Tensor &reset = kept[0], &update = kept[1], &fresh = kept[2], &hx = kept[3], &hidden = kept[4];
    const Tensor of_update = grad * (hx - fresh) * (1 - update) * update,
                 of_fresh = grad * (1 - update) * (1 - fresh.square()),
                 of_reset = of_fresh * hidden * (1 - reset) * reset;
    Tensor of_input = at::cat({of_reset, of_update, of_fresh}, 1),
           of_hidden = at::cat({of_reset, of_update, of_fresh * reset}, 1);
    Tensor input_bias = bias_sum(of_input, has_bias), hidden_bias = bias_sum(of_hidden, has_bias);
    call.give(std::move(of_input), std::move(of_hidden), grad * update, std::move(input_bias), std::move(hidden_bias));
  };
  return plan;
}

constexpr auto* kRecurrentCellSource = "PyTorch LSTMCell and GRUCell";
constexpr auto* kRecurrentCellSupports = "any cut of the batch; cut gates are gathered";

const Register recurrent_cell_rules{
    {.op = "aten::_thnn_fused_lstm_cell",
     .plan = plan_lstm,
     .source = kRecurrentCellSource,
     .supports = kRecurrentCellSupports},
    {.op = "aten::_thnn_fused_lstm_cell_backward_impl",
     .plan = plan_lstm_backward,
     .source = kRecurrentCellSource,
     .supports = kRecurrentCellSupports},
    {.op = "aten::_thnn_fused_gru_cell",
     .plan = plan_gru,
     .source = kRecurrentCellSource,
     .supports = kRecurrentCellSupports},
    {.op = "aten::_thnn_fused_gru_cell_backward",
     .plan = plan_gru_backward,
     .source = kRecurrentCellSource,
     .supports = kRecurrentCellSupports},
};

// LibTorch asks this before it takes cuDNN's kernel for whole recurrent layers, which does not support blocks.
// Without it a layer is made of the steps above.
bool cudnn_is_acceptable(const Tensor& self) { return !is_shard_tensor(self) && at::native::cudnn_is_acceptable(self); }

void intercept_cudnn(torch::Library& library) { library.impl("cudnn_is_acceptable", &cudnn_is_acceptable); }

const InterceptAboveAutograd cudnn_interception(&intercept_cudnn);

}  // namespace
}  // namespace moonhalo
