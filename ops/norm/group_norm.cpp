// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "moonhalo/engine/dispatch/axes.h"
#include "moonhalo/ops/norm/group_norm_local.h"

namespace moonhalo {
namespace {

struct GroupAxes {
  Axes axes;
  std::vector<int> every;
};

std::optional<GroupAxes> group_axes(const OpCall& call) {
  const SpecPtr input = call.spec("input");
  if (input->ndim() < 2) return std::nullopt;
  if (input->global_shape()[0] != call.integer("N") || input->global_shape()[1] != call.integer("C"))
    return std::nullopt;
  GroupAxes group;
  group.axes.kinds.assign(input->ndim(), AxisKind::kKeep);
  group.axes.inputs.resize(call.slots().size());
  for (int64_t d = 0; d < input->ndim(); ++d) group.every.push_back(static_cast<int>(d));
  group.axes.inputs[call.slot("input")] = group.every;
  for (const char* name : {"weight", "bias"}) {
    if (call.has(name) && call.spec(name)) group.axes.inputs[call.slot(name)] = {1};
  }
  return group;
}

// True if every rank can run the operator itself on its samples.
bool samples_are_whole(const ShardSpec& spec) {
  for (int64_t d = 1; d < spec.ndim(); ++d) {
    if (spec.is_cut(d)) return false;
  }
  const auto sizes = spec.block_sizes(0);
  return std::find(sizes.begin(), sizes.end(), 0) == sizes.end();
}

// A small tensor in the type that `x` is computed in.
at::Tensor beside(const at::Tensor& x, const at::Tensor& tensor) {
  return tensor.defined() ? tensor.to(x.scalar_type()).contiguous() : tensor;
}

GroupShape shape_of(const OpCall& call, const SpecPtr& spec) {
  const int64_t groups = call.integer("group");
  const auto dims = dims_from(spec->ndim(), 1);
  return {spec, groups, global_count(*spec, dims) / groups, CutGroup(spec, dims)};
}

std::optional<Plan> plan_group_norm(const OpCall& call) {
  auto group = group_axes(call);
  if (!group) return std::nullopt;
  const auto& shape = call.spec("input")->global_shape();
  const std::vector<int64_t> statistics{shape[0], call.integer("group")};
  group->axes.outputs = {group->every, {0, -1}, {0, -1}};
  group->axes.output_shapes = {shape, statistics, statistics};
  Plan plan = solve(call, group->axes);
  const SpecPtr spec = plan.inputs[call.slot("input")];
  if (samples_are_whole(*spec)) {
    plan.argument_overrides = {{call.arg("N"), spec->local_shape()[0]}};
    plan.run = run_contiguous;
    return plan;
  }
  plan.run = [shape = shape_of(call, spec), eps = call.value("eps").toDouble(), at_input = call.arg("input"),
              at_weight = call.arg("weight"), at_bias = call.arg("bias")](LocalCall& call) {
    const at::Tensor input = call.tensor(at_input), weight = call.tensor(at_weight), bias = call.tensor(at_bias);
    const at::Tensor x = shape.flat(input);
    const Normalized result = normalize_groups(shape, x, beside(x, weight), beside(x, bias), eps);
    const at::ScalarType kept = weight.defined() ? weight.scalar_type() : input.scalar_type();
    call.give(result.y.view(input.sizes()).to(input.scalar_type()), result.mean.to(kept), result.rstd.to(kept));
  };
  return plan;
}

std::optional<Plan> plan_group_norm_backward(const OpCall& call) {
  auto group = group_axes(call);
  if (!group) return std::nullopt;
  group->axes.inputs[call.slot("grad_out")] = group->every;
  group->axes.inputs[call.slot("mean")] = group->axes.inputs[call.slot("rstd")] = {0, -1};
  group->axes.outputs = {group->every};
  group->axes.output_shapes = {call.spec("input")->global_shape()};
  Plan plan = solve(call, group->axes);
  const SpecPtr spec = plan.inputs[call.slot("input")];
  const SpecPtr affine = reduced_spec(spec, dims_but(spec->ndim(), 1), false, ReduceOp::kSum);
  const auto mask = required_gradients(call);
  plan.outputs = masked(mask, {spec, affine, affine});
  if (samples_are_whole(*spec)) {
    plan.argument_overrides = {{call.arg("N"), spec->local_shape()[0]}};
    plan.run = run_contiguous;
    return plan;
  }
  plan.run = [mask, shape = shape_of(call, spec), at_input = call.arg("input"), at_weight = call.arg("weight"),
              at_grad_out = call.arg("grad_out"), at_mean = call.arg("mean"),
              at_rstd = call.arg("rstd")](LocalCall& call) {
    const at::Tensor input = call.tensor(at_input), weight = call.tensor(at_weight);
    const at::ScalarType kept = weight.defined() ? weight.scalar_type() : input.scalar_type();
    const at::Tensor x = shape.flat(input);
    GroupGradients found =
        normalize_groups_back(shape, shape.flat(call.tensor(at_grad_out)), x, beside(x, call.tensor(at_mean)),
                              beside(x, call.tensor(at_rstd)), beside(x, weight), mask);
    if (found.input.defined()) found.input = found.input.view(input.sizes()).to(input.scalar_type());
    if (found.weight.defined()) found.weight = found.weight.to(kept);
    if (found.bias.defined()) found.bias = found.bias.to(kept);
    call.give(found.input, found.weight, found.bias);
  };
  return plan;
}

constexpr auto* kGroupNormSource = "PyTorch GroupNorm; Wu, He 2018";
constexpr auto* kGroupNormSupports = "any cut, also through a group";

const Register group_norm_rules{
    {.op = "aten::native_group_norm",
     .plan = plan_group_norm,
     .source = kGroupNormSource,
     .supports = kGroupNormSupports,
     .traffic = Traffic::kAllReduce},
    {.op = "aten::native_group_norm_backward",
     .plan = plan_group_norm_backward,
     .source = kGroupNormSource,
     .supports = kGroupNormSupports,
     .traffic = Traffic::kAllReduce},
};

}  // namespace
}  // namespace moonhalo
