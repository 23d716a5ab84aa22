// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/Reduction.h>

#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/dispatch/axes.h"
#include "moonhalo/ops/support/reductions.h"

namespace moonhalo {
namespace {

// Elementwise losses: `mean` is the sum over the block divided by the global count, Partial(sum)
// over cut dims.
std::optional<Plan> plan_elementwise(const OpCall& call) {
  const int64_t reduction = call.integer("reduction");
  Axes axes = broadcast_axes(call);
  if (reduction == at::Reduction::None) return solve(call, axes);
  const int64_t count = c10::multiply_integers(axes.output_shapes[0]);
  std::fill(axes.kinds.begin(), axes.kinds.end(), AxisKind::kReduce);
  axes.outputs = {{}};
  axes.output_shapes = {{}};
  Plan plan = solve(call, axes);
  if (reduction != at::Reduction::Mean) return plan;
  const auto narrow = [](const TensorArgument& slot) { return wide_type(slot.dtype) != slot.dtype; };
  if (std::any_of(call.slots().begin(), call.slots().end(), narrow)) {
    // A sum may leave the range of half precision where the mean does not.
    plan.argument_overrides = {{call.arg("reduction"), static_cast<int64_t>(at::Reduction::None)}};
    plan.run = [count](LocalCall& call) {
      call.run();
      const at::Tensor loss = call.result();
      call.give(at::sum(loss, wide_type(loss.scalar_type())).div_(count).to(loss.scalar_type()));
    };
    return plan;
  }
  plan.argument_overrides = {{call.arg("reduction"), static_cast<int64_t>(at::Reduction::Sum)}};
  plan.run = [count](LocalCall& call) {
    call.run();
    call.give(call.result().div(count));
  };
  return plan;
}

// Backward of a mean is the backward of a sum, its gradient divided by the global count.
std::optional<Plan> plan_elementwise_backward(const OpCall& call) {
  Plan plan = solve(call, broadcast_axes(call));
  if (call.integer("reduction") != at::Reduction::Mean) return plan;
  const int64_t count = call.spec("self")->global_numel();
  plan.argument_overrides = {{call.arg("reduction"), static_cast<int64_t>(at::Reduction::Sum)}};
  plan.run = [count, at_grad_output = call.arg("grad_output")](LocalCall& call) {
    c10::IValue& gradient = call.value(at_grad_output);
    gradient = gradient.toTensor().div(count);
    call.run();
  };
  return plan;
}

// Negative log likelihood
//
//     scores [N, C, spatial...] or [C]     target [N, spatial...] or []     class weights [C]
//
// Over cut batch and spatial dims every rank adds up its own points. Over a cut class dim a rank
// serves the points whose class it holds; for all others it sees a target to be ignored.

// A negative number is not a rank's class.
constexpr int64_t kIgnored = -100;

int64_t class_dim(const ShardSpec& scores) { return scores.ndim() == 1 ? 0 : 1; }

Axes scores_axes(const OpCall& call) {
  const ShardSpec& scores = *call.spec("self");
  const int64_t classes = class_dim(scores);
  Axes axes;
  axes.kinds.assign(scores.ndim(), AxisKind::kReduce);
  axes.inputs.resize(call.slots().size());
  std::vector<int> every, points;
  for (int d = 0; d < static_cast<int>(scores.ndim()); ++d) {
    every.push_back(d);
    if (d != classes) points.push_back(d);
  }
  TORCH_CHECK_VALUE(call.spec("target")->ndim() == static_cast<int64_t>(points.size()), call.name(),
                    ": the target must have the shape of the scores without their class dim ", classes,
                    "\n  have  scores ", shape_string(scores.global_shape()), ", target ",
                    shape_string(call.spec("target")->global_shape()),
                    "\n  fix   give one class index per point; for class probabilities use cross_entropy_loss");
  axes.inputs[call.slot("self")] = every;
  axes.inputs[call.slot("target")] = points;
  if (call.spec("weight")) axes.inputs[call.slot("weight")] = {static_cast<int>(classes)};
  return axes;
}

struct Classes {
  int64_t begin, end, all;
};

Classes classes_of(const ShardSpec& scores) {
  const int64_t d = class_dim(scores);
  const int64_t begin = scores.offsets()[d];
  return {begin, begin + scores.local_shape()[d], scores.global_shape()[d]};
}

// The target as this rank sees it: class numbers of its own block, kIgnored for everything else.
at::Tensor own_target(const at::Tensor& target, const Classes& classes, int64_t ignore_index) {
  const at::Tensor counts = target.ne(ignore_index);
  const at::Tensor wrong = counts.logical_and(target.lt(0).logical_or(target.ge(classes.all)));
  // On a GPU the loss kernel itself asserts, so that no rank has to wait for an answer here.
  TORCH_CHECK_INDEX(!target.is_cpu() || is_fake(wrong) || !wrong.any().item<bool>(),
                    "nll_loss: a target is not a class number\n  have  target ",
                    target.masked_select(wrong)[0].item<int64_t>(), " and ", classes.all,
                    " classes\n  fix   number the classes from 0, or name the value to skip as ignore_index");
  const at::Tensor mine = counts.logical_and(target.ge(classes.begin)).logical_and(target.lt(classes.end));
  return at::where(mine, target - classes.begin, kIgnored).masked_fill_(wrong, classes.all);
}

// If classes are cut, the local call sees its own targets only.
Run with_own_target(const OpCall& call, const ShardSpec& scores, Plan& plan, Run run) {
  if (!scores.is_cut(class_dim(scores))) return run;
  plan.argument_overrides.emplace_back(call.arg("ignore_index"), kIgnored);
  return [run = std::move(run), classes = classes_of(scores), ignore_index = call.integer("ignore_index"),
          at_target = call.arg("target")](LocalCall& call) {
    c10::IValue& target = call.value(at_target);
    target = own_target(target.toTensor(), classes, ignore_index);
    run(call);
  };
}

std::optional<Plan> plan_nll(const OpCall& call) {
  const int64_t reduction = call.integer("reduction");
  Axes axes = scores_axes(call);
  const bool none = reduction == at::Reduction::None;
  const auto& points = axes.inputs[call.slot("target")];
  axes.outputs = {none ? points : std::vector<int>{}, {}};
  axes.output_shapes = {none ? call.spec("target")->global_shape() : std::vector<int64_t>{}, {}};
  if (none) {
    for (const int axis : points) axes.kinds[axis] = AxisKind::kKeep;
  }
  Plan plan = solve(call, axes);

  const SpecPtr scores = plan.inputs[call.slot("self")];
  const auto every = reduced_dims(call, scores->ndim());
  const CutGroup group(scores, every);
  if (none) plan.outputs[1] = replicated(call.mesh(), {});
  if (group.alone()) return plan;
  const bool mean = reduction == at::Reduction::Mean;
  if (mean) plan.outputs = {replicated(call.mesh(), {}), replicated(call.mesh(), {})};
  if (mean) plan.argument_overrides = {{call.arg("reduction"), static_cast<int64_t>(at::Reduction::Sum)}};
  const auto run = [=, at_self = call.arg("self"), at_target = call.arg("target")](LocalCall& call) {
    const at::Tensor x = call.tensor(at_self);
    if (x.numel() == 0) {
      const at::Tensor target = call.tensor(at_target), zero = at::zeros({}, x.options());
      call.give(none ? at::zeros(target.sizes(), x.options()) : zero.clone(), zero);
    } else {
      call.run();
    }
    if (!mean) return;
    // The sum and its weight are sent together, so a mean costs one all-reduce of two numbers.
    const at::Tensor sum = call.result(0), weight = call.result(1);
    const at::Tensor both = group.all_reduce(at::stack({sum, weight}).to(wide_type(x.scalar_type())));
    call.give(at::div(both[0], both[1]).to(x.scalar_type()), both[1].to(x.scalar_type()));
  };
  plan.run = with_own_target(call, *scores, plan, run);
  return plan;
}

std::optional<Plan> plan_nll_backward(const OpCall& call) {
  Axes axes = scores_axes(call);
  std::fill(axes.kinds.begin(), axes.kinds.end(), AxisKind::kKeep);
  if (call.spec("grad_output")->ndim() > 0) {
    axes.inputs[call.slot("grad_output")] = axes.inputs[call.slot("target")];
  }
  axes.outputs = {axes.inputs[call.slot("self")]};
  axes.output_shapes = {call.spec("self")->global_shape()};
  Plan plan = solve(call, axes);
  // Only a mean reads the total weight; otherwise a Partial one need not be resolved.
  if (call.integer("reduction") != at::Reduction::Mean) plan.inputs[call.slot("total_weight")] = nullptr;
  const SpecPtr scores = plan.inputs[call.slot("self")];
  const auto run = [at_scores = call.arg("self")](LocalCall& call) {
    const at::Tensor x = call.tensor(at_scores);
    if (x.numel() == 0) return call.give(at::zeros_like(x));
    // The kernel needs a gradient that is row by row, and makes it like the scores.
    if (!x.is_contiguous()) call.value(at_scores) = x.contiguous();
    call.run();
  };
  plan.run = with_own_target(call, *scores, plan, run);
  return plan;
}

constexpr auto* kLossSource = "PyTorch losses; means by the global count";
constexpr auto* kAny = "any cut; sums and means stay Partial(sum)";
constexpr auto* kClasses = "any cut, classes too";

const Register loss_rules{
    {.op = {"aten::mse_loss", "aten::huber_loss", "aten::smooth_l1_loss", "aten::soft_margin_loss",
            "aten::binary_cross_entropy", "aten::binary_cross_entropy_with_logits"},
     .plan = plan_elementwise,
     .source = kLossSource,
     .supports = kAny},
    {.op = {"aten::mse_loss_backward", "aten::huber_loss_backward", "aten::smooth_l1_loss_backward",
            "aten::soft_margin_loss_backward", "aten::binary_cross_entropy_backward"},
     .plan = plan_elementwise_backward,
     .source = kLossSource,
     .supports = kAny},
    {.op = {"aten::nll_loss_forward", "aten::nll_loss2d_forward"},
     .plan = plan_nll,
     .source = kLossSource,
     .supports = kClasses,
     .traffic = Traffic::kAllReduce},
    {.op = {"aten::nll_loss_backward", "aten::nll_loss2d_backward"},
     .plan = plan_nll_backward,
     .source = kLossSource,
     .supports = "any cut"},
};

}  // namespace
}  // namespace moonhalo
