// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <limits>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/dispatch/axes.h"
#include "moonhalo/ops/norm/common.h"

namespace moonhalo {
namespace {

//     input [lead..., normalized...]    weight, bias [normalized...]    mean, rstd [lead..., 1...]
//
// Lead dims may be cut freely. Where normalized dims are cut, the ranks that share a row combine
// their moments.
struct LayerAxes {
  Axes axes;
  std::vector<int64_t> lead, normalized;
  std::vector<int> every, statistics;
  std::vector<int64_t> statistics_shape;
};

LayerAxes layer_axes(const OpCall& call) {
  const ShardSpec& input = *call.spec("input");
  const int64_t ndim = input.ndim();
  const auto shape = call.integers("normalized_shape");
  const int64_t first = ndim - static_cast<int64_t>(shape.size());
  TORCH_CHECK_VALUE(
      first >= 0 && !shape.empty() &&
          std::equal(shape.begin(), shape.end(), input.global_shape().begin() + std::max<int64_t>(first, 0)),
      call.name(), ": the input does not end in the normalized shape ", shape_string(shape), "\n  have  input ",
      shape_string(input.global_shape()), "\n  fix   make the module for the last dims of its input");
  LayerAxes layer;
  layer.axes.kinds.assign(ndim, AxisKind::kKeep);
  layer.axes.inputs.resize(call.slots().size());
  for (int64_t d = 0; d < ndim; ++d) {
    layer.every.push_back(static_cast<int>(d));
    layer.statistics.push_back(d < first ? static_cast<int>(d) : -1);
    layer.statistics_shape.push_back(d < first ? input.global_shape()[d] : 1);
    (d < first ? layer.lead : layer.normalized).push_back(d);
  }
  layer.axes.inputs[call.slot("input")] = layer.every;
  for (const char* name : {"weight", "bias"}) {
    if (!call.has(name) || !call.spec(name)) continue;
    layer.axes.inputs[call.slot(name)] = {layer.every.begin() + first, layer.every.end()};
  }
  return layer;
}

std::optional<Plan> plan_layer_norm(const OpCall& call) {
  LayerAxes layer = layer_axes(call);
  const auto& shape = call.spec("input")->global_shape();
  layer.axes.outputs = {layer.every, layer.statistics, layer.statistics};
  layer.axes.output_shapes = {shape, layer.statistics_shape, layer.statistics_shape};
  Plan plan = solve(call, layer.axes);
  const SpecPtr spec = plan.inputs[call.slot("input")];
  const double eps = call.value("eps").toDouble();
  // Called as a function: lists packed into the stack cost more than the norm of a small block.
  plan.run = [eps, shape = call.integers("normalized_shape"), at_input = call.arg("input"),
              at_weight = call.arg("weight"), at_bias = call.arg("bias")](LocalCall& call) {
    const auto optional = [&](Arg arg) -> std::optional<at::Tensor> {
      c10::IValue& value = call.value(arg);
      if (!value.isTensor() || !value.toTensor().defined()) return std::nullopt;
      at::Tensor given = std::move(value).toTensor();
      return given.is_contiguous() ? std::move(given) : given.contiguous();
    };
    auto [out, mean, rstd] = at::native_layer_norm(*call.tensor(at_input).expect_contiguous(), shape,
                                                   optional(at_weight), optional(at_bias), eps);
    call.give(std::move(out), std::move(mean), std::move(rstd));
  };
  if (CutGroup(spec, layer.normalized).alone()) return plan;
  plan.run = [=, dims = layer.normalized, at_input = call.arg("input"), at_weight = call.arg("weight"),
              at_bias = call.arg("bias")](LocalCall& call) {
    const at::Tensor input = call.tensor(at_input);
    const at::Tensor weight = call.tensor(at_weight), bias = call.tensor(at_bias);
    const at::Tensor x = widen(input);
    const Moments moments = global_moments(x, spec, dims);
    const at::Tensor rstd = at::div(moments.m2, moments.count).add_(eps).rsqrt_();
    at::Tensor y = at::sub(x, moments.mean).mul_(rstd);
    if (weight.defined()) y.mul_(weight);
    if (bias.defined()) y.add_(bias);
    const at::ScalarType kept = weight.defined() ? weight.scalar_type() : input.scalar_type();
    call.give(y.to(input.scalar_type()), moments.mean.to(kept), rstd.to(kept));
  };
  return plan;
}

// With x^ the normalized input, g = dy * weight, and means over the normalized dims:
//     dx = rstd (g - mean(g) - x^ mean(g x^)),   dweight = sum over lead dims of dy x^,
//     dbias = that of dy.
std::optional<Plan> plan_layer_norm_backward(const OpCall& call) {
  LayerAxes layer = layer_axes(call);
  layer.axes.inputs[call.slot("grad_out")] = layer.every;
  layer.axes.inputs[call.slot("mean")] = layer.axes.inputs[call.slot("rstd")] = layer.statistics;
  layer.axes.outputs = {layer.every};
  layer.axes.output_shapes = {call.spec("input")->global_shape()};
  Plan plan = solve(call, layer.axes);
  const SpecPtr spec = plan.inputs[call.slot("input")];
  const SpecPtr affine = reduced_spec(spec, layer.lead, false, ReduceOp::kSum);
  const auto mask = required_gradients(call);
  plan.outputs = masked(mask, {spec, affine, affine});
  plan.run = run_contiguous;
  const CutGroup group(spec, layer.normalized);
  if (group.alone()) return plan;
  const int64_t count = global_count(*spec, layer.normalized);
  plan.run = [=, lead = layer.lead, dims = layer.normalized, at_mean = call.arg("mean"), at_rstd = call.arg("rstd"),
              at_weight = call.arg("weight"), at_input = call.arg("input"),
              at_grad_out = call.arg("grad_out")](LocalCall& call) {
    const at::Tensor input = call.tensor(at_input), weight = call.tensor(at_weight);
    const at::ScalarType kept = weight.defined() ? weight.scalar_type() : input.scalar_type();
    const at::Tensor grad = widen(call.tensor(at_grad_out)), rstd = widen(call.tensor(at_rstd));
    const at::Tensor x = at::sub(widen(input), call.tensor(at_mean)).mul_(rstd);
    at::Tensor dx, dweight, dbias;
    if (mask[0]) {
      const at::Tensor g = weight.defined() ? grad * weight : grad;
      const at::Tensor means = group.all_reduce(at::stack({g.sum(dims, true), (g * x).sum(dims, true)})).div_(count);
      dx = at::sub(g, means[0]).sub_(x * means[1]).mul_(rstd).to(input.scalar_type());
    }
    // A copy: a gradient that shared memory with dy would be accumulated into it.
    const auto sum_lead = [&](const at::Tensor& t) { return (lead.empty() ? t.clone() : t.sum(lead)).to(kept); };
    if (mask[1]) dweight = sum_lead(grad * x);
    if (mask[2]) dbias = sum_lead(grad);
    call.give(dx, dweight, dbias);
  };
  return plan;
}

// y = x / sqrt(mean(x^2) + eps) * weight, the mean over the normalized dims.
std::optional<Plan> plan_rms_forward(const OpCall& call) {
  LayerAxes layer = layer_axes(call);
  layer.axes.outputs = {layer.every, layer.statistics};
  layer.axes.output_shapes = {call.spec("input")->global_shape(), layer.statistics_shape};
  Plan plan = solve(call, layer.axes);
  const SpecPtr spec = plan.inputs[call.slot("input")];
  const std::optional<double> eps = call.value("eps").toOptional<double>();
  plan.run = [eps, dims = layer.normalized, group = CutGroup(spec, layer.normalized),
              count = global_count(*spec, layer.normalized), at_weight = call.arg("weight"),
              at_input = call.arg("input")](LocalCall& call) {
    const at::Tensor input = call.tensor(at_input), weight = call.tensor(at_weight);
    const at::Tensor x = widen(input);
    const double least =
        x.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
    const at::Tensor squares = group.all_reduce(x.square().sum(dims, true)).div_(count);
    const at::Tensor rstd = squares.add_(eps.value_or(least)).rsqrt_();
    at::Tensor y = x * rstd;
    if (weight.defined()) y.mul_(weight);
    call.give(y.to(input.scalar_type()), rstd);
  };
  return plan;
}

// dx = rstd (g - x^ mean(g x^)), with g = dy * weight and x^ = x rstd.
std::optional<Plan> plan_rms_backward(const OpCall& call) {
  LayerAxes layer = layer_axes(call);
  layer.axes.inputs[call.slot("grad_out")] = layer.every;
  layer.axes.inputs[call.slot("rstd")] = layer.statistics;
  layer.axes.outputs = {layer.every};
  layer.axes.output_shapes = {call.spec("input")->global_shape()};
  Plan plan = solve(call, layer.axes);
  const SpecPtr spec = plan.inputs[call.slot("input")];
  const auto mask = required_gradients(call);
  plan.outputs = masked(mask, {spec, reduced_spec(spec, layer.lead, false, ReduceOp::kSum)});
  plan.run = [mask, lead = layer.lead, dims = layer.normalized, group = CutGroup(spec, layer.normalized),
              count = global_count(*spec, layer.normalized), at_rstd = call.arg("rstd"), at_weight = call.arg("weight"),
              at_input = call.arg("input"), at_grad_out = call.arg("grad_out")](LocalCall& call) {
    const at::Tensor input = call.tensor(at_input), weight = call.tensor(at_weight);
    const at::Tensor grad = widen(call.tensor(at_grad_out)), rstd = widen(call.tensor(at_rstd));
    const at::Tensor x = widen(input) * rstd;
    at::Tensor dx, dweight;
    if (mask[0]) {
      const at::Tensor g = weight.defined() ? grad * weight : grad;
      const at::Tensor mean = group.all_reduce((g * x).sum(dims, true)).div_(count);
      dx = at::sub(g, x * mean).mul_(rstd).to(input.scalar_type());
    }
    if (mask[1] && weight.defined()) {
      dweight = grad * x;
      dweight = (lead.empty() ? dweight : dweight.sum(lead)).to(weight.scalar_type());
    }
    call.give(dx, dweight);
  };
  return plan;
}

constexpr auto* kLayerNormSource = "PyTorch LayerNorm; Ba, Kiros, Hinton 2016";
constexpr auto* kLayerNormSupports = "any cut; exact moments over cut normalized dims";
constexpr auto* kRmsSource = "PyTorch RMSNorm; Zhang, Sennrich 2019";
constexpr auto* kRmsSupports = "any cut";

const Register layer_norm_rules{
    {.op = "aten::native_layer_norm",
     .plan = plan_layer_norm,
     .source = kLayerNormSource,
     .supports = kLayerNormSupports,
     .traffic = Traffic::kAllReduce},
    {.op = "aten::native_layer_norm_backward",
     .plan = plan_layer_norm_backward,
     .source = kLayerNormSource,
     .supports = kLayerNormSupports,
     .traffic = Traffic::kAllReduce},
    {.op = "aten::_fused_rms_norm",
     .plan = plan_rms_forward,
     .source = kRmsSource,
     .supports = kRmsSupports,
     .traffic = Traffic::kAllReduce},
    {.op = "aten::_fused_rms_norm_backward",
     .plan = plan_rms_backward,
     .source = kRmsSource,
     .supports = kRmsSupports,
     .traffic = Traffic::kAllReduce},
};

}  // namespace
}  // namespace moonhalo
