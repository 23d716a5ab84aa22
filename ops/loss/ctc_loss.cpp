// SPDX-License-Identifier: Apache-2.0
// Connectionist temporal classification: the batch may be cut, times and classes of a sequence are together.
//
//     log_probs [T, N, C]    targets [N, S], or all of them joined in one line    losses [N]    log_alpha [N, T, 2 S +
//                            1]
#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "moonhalo/engine/dispatch/axes.h"

namespace moonhalo {
namespace {

using Ints = std::vector<int64_t>;

struct Sequences {
  Plan plan;
  Ints inputs, targets;  // lengths of this rank's sequences
  int64_t joined = -1;   // where its targets begin in the joined line; -1: targets have rows
  int64_t longest = 0;   // target of the whole batch
  Arg at_targets, at_inputs, at_lengths;
};

// The results are those of `outputs`, in terms of the axes batch, time and class.
Sequences sequences(const OpCall& call, const std::vector<std::vector<int>>& outputs, const std::vector<Ints>& shapes) {
  const int n = 0, t = 1, c = 2;
  const bool lines = call.spec("targets")->ndim() == 2;
  Axes axes;
  axes.kinds = {AxisKind::kKeep, AxisKind::kUncut, AxisKind::kUncut};
  axes.inputs.resize(call.slots().size());
  axes.inputs[call.slot("log_probs")] = {t, n, c};
  axes.inputs[call.slot("targets")] = lines ? std::vector<int>{n, -1} : std::vector<int>{-1};
  if (call.has("grad")) {
    axes.inputs[call.slot("grad")] = {n};
    axes.inputs[call.slot("neg_log_likelihood")] = {n};
    axes.inputs[call.slot("log_alpha")] = {n, t, -1};
  }
  axes.outputs = outputs;
  axes.output_shapes = shapes;
  Sequences found{.plan = solve(call, axes),
                  .at_targets = call.arg("targets"),
                  .at_inputs = call.arg("input_lengths"),
                  .at_lengths = call.arg("target_lengths")};
  const SpecPtr& held = found.plan.inputs[call.slot("log_probs")];
  const auto [begin, end] = held->block_range(1, call.mesh()->rank());
  const Ints inputs = call.integers("input_lengths"), targets = call.integers("target_lengths");
  found.inputs.assign(inputs.begin() + begin, inputs.begin() + end);
  found.targets.assign(targets.begin() + begin, targets.begin() + end);
  if (!lines) found.joined = std::accumulate(targets.begin(), targets.begin() + begin, int64_t{0});
  for (const int64_t length : targets) found.longest = std::max(found.longest, length);
  return found;
}

bool is_batch(const OpCall& call) {
  const SpecPtr& x = call.spec("log_probs");
  if (x->ndim() != 3) return false;
  if (!call.value("input_lengths").isIntList() && !call.value("input_lengths").isList()) return false;
  const auto sequences = static_cast<size_t>(x->global_shape()[1]);
  return call.integers("input_lengths").size() == sequences && call.integers("target_lengths").size() == sequences;
}

// The local call sees the lengths and targets of its own sequences.
void localize(LocalCall& call, const Sequences& mine) {
  call.value(mine.at_inputs) = mine.inputs;
  call.value(mine.at_lengths) = mine.targets;
  if (mine.joined < 0) return;
  c10::IValue& targets = call.value(mine.at_targets);
  targets =
      targets.toTensor().narrow(0, mine.joined, std::accumulate(mine.targets.begin(), mine.targets.end(), int64_t{0}));
}

std::optional<Plan> plan_ctc(const OpCall& call) {
  if (!is_batch(call)) return std::nullopt;
  const Ints& shape = call.spec("log_probs")->global_shape();
  const Ints lengths = call.integers("target_lengths");
  const int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  const int64_t width = 2 * longest + 1;
  Sequences mine = sequences(call, {{0}, {0, 1, -1}}, {{shape[1]}, {shape[1], shape[0], width}});
  Plan plan = mine.plan;
  if (!plan.outputs[0]->has_cut()) return plan;
  plan.run = [=, alpha = plan.outputs[1]->local_shape(), at_log_probs = call.arg("log_probs")](LocalCall& call) {
    const at::Tensor x = call.tensor(at_log_probs);
    // The table is as wide as the longest target of all ranks needs; the rest is never read.
    at::Tensor table = at::zeros(alpha, x.options());
    if (x.numel() == 0) return call.give(at::zeros({0}, x.options()), table);
    localize(call, mine);
    call.run();
    const at::Tensor loss = call.result(0), local = call.result(1);
    table.narrow(2, 0, local.size(2)).copy_(local);
    call.give(loss, table);
  };
  return plan;
}

std::optional<Plan> plan_ctc_backward(const OpCall& call) {
  if (!is_batch(call)) return std::nullopt;
  Sequences mine = sequences(call, {{1, 0, 2}}, {call.spec("log_probs")->global_shape()});
  Plan plan = mine.plan;
  if (!plan.outputs[0]->has_cut()) return plan;
  plan.run = [=, at_log_probs = call.arg("log_probs")](LocalCall& call) {
    const at::Tensor x = call.tensor(at_log_probs);
    if (x.numel() == 0) return call.give(at::zeros_like(x));
    localize(call, mine);
    call.run();
  };
  return plan;
}

constexpr auto* kCtcLossSource = "PyTorch ctc_loss; Graves et al. 2006";

const Register ctc_loss_rules{
    {.op = "aten::_ctc_loss", .plan = plan_ctc, .source = kCtcLossSource, .supports = "any cut of the batch"},
    {.op = "aten::_ctc_loss_backward",
     .plan = plan_ctc_backward,
     .source = kCtcLossSource,
     .supports = "any cut of the batch"},
};

}  // namespace
}  // namespace moonhalo
